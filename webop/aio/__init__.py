"""Additions to asyncio: backoff, cancellation, threads, a deadline for all work."""
