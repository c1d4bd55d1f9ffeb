"""The processes of a run: how they are started, meet, compute together, and what is known of those that fail."""
