"""What is said about runs: the bottleneck, the profile, the reports."""
