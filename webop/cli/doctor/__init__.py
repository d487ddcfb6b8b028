"""``webop doctor``: is an operator in order in a cluster, and if not, what to do."""
