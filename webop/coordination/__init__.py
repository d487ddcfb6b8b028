"""Who acts: one of several replicas (leadership), one of several operators (peering).

Both only pause and resume this process (:mod:`webop.handling.pausing`); the reactor obeys.
Admission is not affected: all replicas serve webhooks all the time.
"""
