"""An API server in memory: the semantics of kube-apiserver, without I/O and without a clock.

Place in the flow: the fake client, or the network of a simulation, hands requests to
:class:`Cluster`, one by one, and takes events from its watches. The tests
``tests/simulation/test_conformance.py`` and ``tests/cluster/testing/test_fake_client.py`` compare
it with a real kube-apiserver; the remaining differences are in
``tools/simulation/README.md``.
"""

from .messages import Json, Refusal, Request, Response
from .server import Cluster
from .store import Change, Watch

__all__ = ["Change", "Cluster", "Json", "Refusal", "Request", "Response", "Watch"]
