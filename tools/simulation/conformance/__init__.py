"""Is the API server in memory like the real one? The same random requests to both, compared."""
