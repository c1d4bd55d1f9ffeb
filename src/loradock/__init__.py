"""loradock: a base model and a data set in, a fine-tuned adapter out."""

__version__ = "0.1.0"
