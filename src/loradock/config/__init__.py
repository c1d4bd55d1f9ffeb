"""What the user asked: the typed schema, strict YAML, presets, overrides, and where each value came from."""
