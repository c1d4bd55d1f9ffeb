"""Processes: how a Python of ours is started."""
