"""The model and the data that a configuration names."""
