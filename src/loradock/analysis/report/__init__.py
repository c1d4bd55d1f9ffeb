"""What a person reads of a run: the plan and the progress on a screen, the summary, the curve and the model card."""
