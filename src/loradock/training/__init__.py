"""A run: what is around it, the loop, its backends, checkpoints, the run directory, and who watches."""
