"""What will be different for an operator that was written for Kopf, read from its files."""
