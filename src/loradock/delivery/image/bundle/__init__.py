"""One file with what a run needs on a site without a network: image, lock, base model and data, with digests."""
