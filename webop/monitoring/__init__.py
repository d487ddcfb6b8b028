"""The metrics of an operator, and its status page.

A scrape: :func:`webop.monitoring.exposition.expose` → the definitions in
:mod:`webop.monitoring.metrics`, each with a function that reads its values from the operator → the
text. Nothing here runs between scrapes: counters are in :mod:`webop.telemetry.counters`, gauges are
read at each scrape.

The page: :class:`webop.monitoring.status_report.Reporter` reads the values of the metrics and the
objects in progress → ``/status.json`` → the page in a browser, which polls it.
:mod:`webop.monitoring.status_page` has the files of the page and checks who can read them.
"""
