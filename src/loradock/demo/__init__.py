"""The embedded demo: a small base model that this package trained, a data set, and the score on its held-out part."""
