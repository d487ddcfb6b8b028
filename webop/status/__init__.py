"""The status page of a running operator, and the report that it shows.

Flow: :class:`webop.status.report.Reporter` reads the values of the metrics and the objects in
progress → ``/status.json`` → the page in a browser, which polls it. :mod:`webop.status.page` has
the files of the page and checks who can read them.
"""
