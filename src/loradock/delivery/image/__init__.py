"""The image: its build on scratch storage, what prune may take, its content digest, its bill of materials."""
