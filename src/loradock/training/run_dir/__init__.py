"""The run directory: its paths, the lock on it, what run.json and status.json hold, and how it is continued."""
