"""``webop doctor``: is the admission of an operator in order in a cluster, and if not, what to do.

:mod:`webop.doctor.examination` makes the whole examination of small checks, each a module of its
own. What they find are values (:mod:`webop.doctor.findings`); what can be judged without I/O is
judged in pure functions.
"""
