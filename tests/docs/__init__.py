"""What the documentation shows is run: its Python as written, its commands by name."""
