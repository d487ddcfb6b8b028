"""Credentials: where they come from, how long they are valid, and their vault."""
