"""Plans: the steps of an operator that begins now, written down and not done (``webop plan``).

Flow: :class:`webop.planning.planner.Planner` → for each object, the decision of
:mod:`webop.reactor.decision` → for reconcilers that are called, the transport of
:mod:`webop.planning.dry_runs` → :mod:`webop.planning.reports`.
"""
