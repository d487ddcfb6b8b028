"""Compare webop with kopf and a Go controller on one real API server: CPU, memory, latency.

``python -m bench --help`` shows the usage, ``bench/README.md`` defines each figure. The flow:
``__main__`` → a scenario (one file each in ``bench/scenarios``) → ``operators`` (one process of one
side) and ``api`` (the load, and the server's metrics) → ``report``.
"""
