"""One call of a handler: invocation, threads, errors and retries, progress, sub-handlers."""
