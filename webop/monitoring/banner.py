"""The banner of ``webop run`` on a terminal: six lines that say what runs, and where."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from webop.aio.concurrency import running
from webop.handlers.model import name_decorator, name_kind
from webop.logs.sanitizing import escape
from webop.logs.terminal import find_formatter
from webop.monitoring import metrics
from webop.objects.names import join_names
from webop.version import __version__

if TYPE_CHECKING:
    from webop.runtime.operator import Operator

_PATIENCE = 10.0  # seconds; then the banner is shown although something is not known
_POLLING = 0.05  # seconds
_LIMIT = 4  # kinds on one line


def showing_banner(operator: Operator, pages: Sequence[str]) -> AbstractAsyncContextManager[None]:
    """Show the banner during a block, when all of it is known, if somebody reads at a terminal."""
    return running(_show(operator, next(iter(pages), None)), name="banner")


async def _show(operator: Operator, page: str | None) -> None:
    if (formatter := find_formatter()) is None:
        return
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _PATIENCE
    while not _is_known(operator) and loop.time() < deadline:  # noqa: ASYNC110  of several parts
        await asyncio.sleep(_POLLING)
    title, *lines = build_banner(operator, page)
    shown = [formatter.paint(title, "1")]
    for line in lines:
        name, _, text = line.partition(" ")
        shown.append(f"  {formatter.paint(f'{name:10}', '2')}{escape(text)}")
    with contextlib.suppress(OSError):  # the terminal was closed; the operator runs on
        sys.stderr.write("\n".join((*shown, "")))
        sys.stderr.flush()


def _is_known(operator: Operator) -> bool:
    webhooks, is_scanned = operator.webhooks, operator.context.cluster_view.is_known
    return (is_scanned or not operator.needs_cluster) and (
        bool(webhooks.address) or not webhooks.has_server
    )


def build_banner(operator: Operator, page: str | None) -> list[str]:
    """Return the lines; each but the first one begins with its name."""
    cluster = operator.client.vault.server or "not logged in yet"
    webhooks = operator.webhooks
    address = webhooks.address or ("not listening yet" if webhooks.has_server else "none")
    if webhooks.has_server and not webhooks.is_managing:
        address += ", not registered (settings.admission.managed)"
    return [
        f"webop {__version__}",
        f"Handlers {_describe_handlers(operator)}",
        f"Cluster {cluster if operator.needs_cluster else 'not needed'}",
        f"Serving {_describe_scope(operator)}",
        f"Webhooks {address}",
        f"Status {page or 'no page; add --status=http://localhost:8080/ui'}",
    ]


def _describe_handlers(operator: Operator) -> str:
    registry = operator.context.registry
    found: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for handler in (*registry.select_resource_handlers(), *registry.select_webhooks()):
        found[name_kind(handler)][name_decorator(handler)] = None
    texts = [f"{kind} ({', '.join(names)})" for kind, names in found.items()]
    return join_names(texts, _LIMIT) or "none for objects"


def _describe_scope(operator: Operator) -> str:
    if not operator.watches_objects:
        return join_names(operator.webhooks.review.ids, _LIMIT) or "no webhooks"
    kinds = {stream.ctx.resource.name for stream in metrics.list_streams(operator)}
    scope = operator.options.scope
    places = join_names(sorted(map(str, scope.patterns)), _LIMIT)
    where = "all namespaces" if scope.clusterwide else f"namespaces: {places}"
    return f"{join_names(sorted(kinds), _LIMIT) or 'no kinds yet'} in {where}"
