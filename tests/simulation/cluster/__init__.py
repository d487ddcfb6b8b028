"""An API server in memory, for simulations: the semantics of kube-apiserver, without I/O and time.

Place in the flow: whoever simulates the network hands requests to :class:`Cluster`, one by one,
and takes events from its watches. The test ``tests/simulation/test_conformance.py`` compares it
with a real kube-apiserver; what differs for good is listed in ``docs/simulation.md``.
"""

from .messages import Json, Refusal, Request, Response
from .server import Cluster
from .store import Change, Watch
from .webhooks import Review

__all__ = ["Change", "Cluster", "Json", "Refusal", "Request", "Response", "Review", "Watch"]
