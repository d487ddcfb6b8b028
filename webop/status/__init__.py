"""What people see of an operator while it runs: a page, and the report that it is made of.

Flow: :func:`webop.status.report.build_report` reads what metrics read, and the objects in progress
→ ``/status.json`` → the page in a browser, which asks for it again and again. Which files belong to
the page, and who may have them, is in :mod:`webop.status.page`.
"""
