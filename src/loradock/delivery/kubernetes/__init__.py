"""Kubernetes manifests: what a workload needs, the parts that every kind shares, and the check of any manifest."""
