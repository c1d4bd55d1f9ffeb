"""What is installed in an environment, against the lock: names, versions, and every file's bytes."""
