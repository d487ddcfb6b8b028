"""How log lines look (chapter "Configuration", "Logging formats").

Flow: :func:`configure` puts a handler with one of :mod:`webop.logs.formats` on the root logger;
:mod:`webop.logs.reviews` knows which review a message belongs to.
Public: ``webop.configure`` and ``webop.LogFormat``.
"""

from __future__ import annotations

from webop.logs.configuration import configure, preserve
from webop.logs.formats import JSONFormatter, LogFormat, TextFormatter

__all__ = [
    "JSONFormatter",
    "LogFormat",
    "TextFormatter",
    "configure",
    "preserve",
]
