"""After training: texts as vectors, how good they are for retrieval and similarity, and the export for others."""
