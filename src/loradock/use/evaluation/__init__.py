"""How good a model's answers are: tasks and the user's own rows, scored row by row, with what the scores can say."""
