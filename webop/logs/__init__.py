"""How log lines look, and how many there are (chapter "Configuration", "Logging formats").

Flow: :func:`configure` puts a handler with one of :mod:`webop.logs.formats` on the root logger;
:mod:`webop.logs.repetitions` holds back what the framework itself says again and again;
:mod:`webop.logs.reviews` knows which review a message belongs to.
Public: ``webop.configure`` and ``webop.LogFormat``.
"""

from __future__ import annotations

from webop.logs.configuration import configure, preserve
from webop.logs.formats import JSONFormatter, LogFormat, TextFormatter
from webop.logs.repetitions import limit_repetitions

__all__ = [
    "JSONFormatter",
    "LogFormat",
    "TextFormatter",
    "configure",
    "limit_repetitions",
    "preserve",
]
