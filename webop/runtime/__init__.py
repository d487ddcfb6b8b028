"""The life of one operator: loading, login, startup, run, stop."""
