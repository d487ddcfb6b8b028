"""Coordination: one replica leads (leadership), and one of several operators acts (peering).

Both only pause and resume this process (:mod:`webop.context.pausing`); the reactor follows.
Admission is not affected: all replicas serve webhooks all the time.
"""
