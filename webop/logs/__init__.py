"""How log lines look (chapter "Configuration", "Logging formats").

Flow: :func:`configure` puts a handler with one of :mod:`webop.logs.formats` on the root logger, or
:func:`configure_terminal` one with that of :mod:`webop.logs.terminal`.
"""

from __future__ import annotations

from webop.logs.configuration import configure, configure_terminal, preserve
from webop.logs.formats import JSONFormatter, LogFormat, TextFormatter
from webop.logs.kopf_loggers import join_loggers, restore_loggers

__all__ = [
    "JSONFormatter",
    "LogFormat",
    "TextFormatter",
    "configure",
    "configure_terminal",
    "preserve",
    "restore_loggers",
]

join_loggers()
