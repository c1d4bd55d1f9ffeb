"""The sections of a configuration, one file a subject; `config/schema.py` puts them together."""
