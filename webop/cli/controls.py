"""What code that runs the command line in its own process can hand in, as click's ``obj``."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from webop.client.credentials import Vault
    from webop.handling.registry import OperatorRegistry
    from webop.settings import OperatorSettings


@dataclass
class CLIControls:
    """Flags and parts of an operator that is run by the command line (CLI-19)."""

    ready_flag: Any = None
    stop_flag: Any = None
    vault: Vault | None = None
    registry: OperatorRegistry | None = None
    settings: OperatorSettings | None = None
    loop: asyncio.AbstractEventLoop | None = None
