"""Counters of an operator's work, and its spans of OpenTelemetry."""
