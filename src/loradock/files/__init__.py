"""Files: how what comes from outside is read."""
