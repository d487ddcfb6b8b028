"""Public operators written for Kopf, under kopf and under webop: what is different in the cluster?

``python -m bench.wild --help`` shows the use, ``docs/wild.md`` has the results. Each file in
``bench/wild/operators`` describes one operator: where it is fetched from, how it is run, and the
steps that are played. The flow: ``__main__`` → ``sources`` (the operator and a Python for it) →
``play`` (one side on a cluster of its own) → ``compare``.
"""
