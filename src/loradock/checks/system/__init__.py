"""What the machine or the container gives a run: limits, folders, users, tools."""
