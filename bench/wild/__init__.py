"""Compare the objects that public operators make under kopf and under webop.

``python -m bench.wild --help`` shows the usage, ``README.md`` has the results. Each file in
``bench/wild/operators`` describes one operator: its sources, its command line, and the
steps to play. The flow: ``__main__`` → ``sources`` (the operator and a Python for it) →
``play`` (one side on its own cluster) → ``compare``.
"""
