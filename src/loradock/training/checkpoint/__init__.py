"""Checkpoints: what one holds, how it is written, found, verified and exported."""
