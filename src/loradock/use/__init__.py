"""What is done with a run, an adapter or a model: opened, answered from, scored, embedded, merged, exported."""
