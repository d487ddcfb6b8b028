"""``webop doctor``: is an operator in order in a cluster, and if not, what to do.

:mod:`webop.doctor.examination` calls the checks; what they find are values
(:mod:`webop.doctor.findings`). What can be judged without I/O is judged in pure functions.
"""
