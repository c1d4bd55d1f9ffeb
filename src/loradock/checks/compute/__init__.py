"""Real computations on this machine's device, against a reference."""
