"""The settings of an operator: the groups with their defaults, and how they are set."""
