"""The HTML report of one or several runs: one file that opens from disk and asks no network for anything."""
