"""Text for people: what a terminal would obey is shown, and no secret is in it."""
