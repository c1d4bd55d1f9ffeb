"""A mixture's experts, which transformers 5 keeps in one 3-D parameter a matrix: stored in NF4, multiplied, adapted."""
