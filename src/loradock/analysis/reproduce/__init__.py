"""A run made again from its record: what differs here, its steps beside the first ones, and whether they are equal."""
