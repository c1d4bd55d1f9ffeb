"""Using what was trained: a model is opened, prompted as in training, and answers."""
