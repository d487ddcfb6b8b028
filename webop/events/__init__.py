"""Kubernetes Events: loggers of objects that post them, and counting of repetitions."""
