"""The client of the running handler: an AsyncClient, in a context variable.

Its class takes long to load, so this module does not name it: handlers can be declared without it.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

current_client: ContextVar[Any] = ContextVar("current_client", default=None)
