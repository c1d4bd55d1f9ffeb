"""Who watches a run: trackers, the monitor of its machine, the model card, the curve of the loss."""
