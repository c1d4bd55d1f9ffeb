"""Where a run is brought to: the image and what it is built of, and Kubernetes."""
