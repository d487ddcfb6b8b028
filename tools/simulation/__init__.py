"""Operators in a simulated cluster: virtual time, random histories, invariants."""
