"""Who acts: one of several replicas (leadership), one of several operators (peering).

Both only decide whether this process is on duty (:mod:`webop.handling.duty`); the reactor obeys.
Admission does not care: webhooks are served by all replicas all the time.
"""
