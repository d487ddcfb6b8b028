"""The metrics of an operator, in the formats of Prometheus.

Flow: :func:`webop.metrics.exposition.expose` → the definitions in
:mod:`webop.metrics.definitions`, each with a function that reads its values from the operator →
the text. Nothing here runs between scrapes: counters are in :mod:`webop.counters`, gauges are read
at each scrape.
"""
