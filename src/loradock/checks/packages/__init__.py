"""Installed packages: as locked, and fit for one another."""
