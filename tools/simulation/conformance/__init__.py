"""Is the API server in memory like the real one? The same random requests to both, compared.

From the command line: ``python -m tools.simulation.conformance --requests 5000 --seed 1``.
"""

from .comparison import Conformance, Difference

__all__ = ["Conformance", "Difference"]
