"""The processes of a run on this machine: where they meet the others, how they are started, and what ended them."""
