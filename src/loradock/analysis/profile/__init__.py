"""What a run's time goes into: a short real training, partly under torch's profiler, read and judged."""
