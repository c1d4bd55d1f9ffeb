"""What mixes the tokens of a document in a layer's first half: attention, or a recurrence."""
