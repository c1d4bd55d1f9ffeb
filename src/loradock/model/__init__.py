"""The base model and its adapter: found, checked, loaded in 4 bit, given LoRA, exported."""
