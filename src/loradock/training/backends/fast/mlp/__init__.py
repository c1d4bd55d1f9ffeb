"""The second half of a decoder layer: a gated MLP, or a mixture of experts."""
