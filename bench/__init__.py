"""webop beside kopf and a Go controller on one real API server: CPU, memory, latency, requests.

``python -m bench --help`` shows the use, ``docs/bench.md`` says what each figure means. The flow:
``__main__`` → a scenario (one file each in ``bench/scenarios``) → ``operators`` (one process of one
side) and ``api`` (the load, and what the server saw) → ``report``.
"""
