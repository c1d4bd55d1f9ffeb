"""Preference pairs as documents: two a row, the chosen answer with its prompt, and the rejected one."""
