"""webop: Kubernetes operators in Python, admission webhooks first, as one ASGI app.

The decorators of :mod:`webop.on` register functions as **handlers** of **resources**. webop calls
them for *changes* of objects (``on.create``, ``on.update``, ``on.delete``, ``on.resume``,
``on.field``) until they succeed, and stores their progress on the objects. It calls ``on.event``
for *raw events* of watches, and ``on.validate`` and ``on.mutate`` for *admission reviews*, before
the API server stores an object. A handler puts its changes into ``patch``; webop stores its result
in the status. ``import webop as kopf`` works for operators written for Kopf.

Everything public is in :data:`__all__`, in :mod:`webop.on`, :mod:`webop.lifecycles`,
:mod:`webop.models`, :mod:`webop.errors`, :mod:`webop.client`, :mod:`webop.testing` and
:mod:`webop.cli`. The names of ``webop.models`` and ``webop.errors`` work as ``webop.Model``, too.
Modules for models and for the network are imported at first use, so that files with handlers import
fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from webop import client, errors, lifecycles, models, on
from webop.aio.clock import now
from webop.calls.subhandlers import execute
from webop.client.auth.logins import (
    login_via_async_client,
    login_via_client,
    login_via_pykube,
    login_with_kubeconfig,
    login_with_service_account,
)
from webop.client.auth.vault import AiohttpSession, ConnectionInfo, Vault
from webop.context.indexes import Index, Store
from webop.context.memos import Memo
from webop.errors import (
    AdmissionError,
    HandlerRetriesError,
    HandlerTimeoutError,
    LoginError,
    PermanentError,
    TemporaryError,
)
from webop.events.loggers import (
    LocalObjectLogger,
    Logger,
    ObjectLogger,
    event,
    exception,
    info,
    warn,
)
from webop.handlers.filters import all_, any_, none_, not_
from webop.handlers.model import ABSENT, PRESENT, ErrorsMode, HandlerId, Reason, Rule
from webop.handlers.registry import OperatorRegistry, get_default_registry, set_default_registry
from webop.handlers.retries import Again, Backoff, again
from webop.handlers.stopping import (
    AsyncDaemonStopped,
    DaemonStopped,
    DaemonStoppingReason,
    SyncDaemonStopped,
)
from webop.handlers.webhook_options import LabelSelector
from webop.lifecycles import get_default_lifecycle, set_default_lifecycle
from webop.logs import LogFormat, configure
from webop.objects.adoption import (
    adjust_namespace,
    adopt,
    append_owner_reference,
    harmonize_naming,
    label,
    remove_owner_reference,
)
from webop.objects.body import (
    Annotations,
    Body,
    BodyEssence,
    Labels,
    Meta,
    ObjectReference,
    OwnerReference,
    RawBody,
    RawEvent,
    RawEventType,
    Spec,
    Status,
    build_object_reference,
    build_owner_reference,
)
from webop.objects.diffs import Diff, DiffItem, DiffOperation
from webop.objects.field_errors import AdmissionCause
from webop.objects.fields import FieldPath, FieldSpec
from webop.objects.patch import Patch, PatchFn
from webop.objects.resources import EVERYTHING, Resource
from webop.objects.storage.diffbase import (
    AnnotationsDiffBaseStorage,
    DiffBaseStorage,
    MultiDiffBaseStorage,
    StatusDiffBaseStorage,
)
from webop.objects.storage.progress import (
    AnnotationsProgressStorage,
    MultiProgressStorage,
    ProgressRecord,
    ProgressStorage,
    SmartProgressStorage,
    StatusProgressStorage,
)
from webop.on import daemon, index, reconcile, register, subhandler, timer
from webop.servers.base import (
    Headers,
    Operation,
    SSLPeer,
    UserInfo,
    WebhookClientConfig,
    WebhookClientConfigService,
    WebhookFn,
    WebhookServerProtocol,
)
from webop.settings.groups import OperatorSettings
from webop.version import __version__

if TYPE_CHECKING:
    from webop.app import create_app
    from webop.client.objects import AsyncClient, SyncClient
    from webop.context.children import Applied, Children, SyncChildren
    from webop.embedding import operator, run, run_tasks, spawn_tasks
    from webop.errors import *  # noqa: F403 - its names are here, too
    from webop.handlers.admission_rules import rule
    from webop.models import *  # noqa: F403
    from webop.servers.auto import WebhookAutoServer, WebhookAutoTunnel
    from webop.servers.local import (
        WebhookDockerDesktopServer,
        WebhookK3dServer,
        WebhookMinikubeServer,
        WebhookServer,
    )
    from webop.servers.service_server import WebhookServiceServer
    from webop.servers.tunnel import WebhookNgrokTunnel, WebhookTunnel

# Names whose modules import more than a file with handlers needs, or that few files need.
_LAZY = {
    "webop.app": ("create_app",),
    "webop.client.objects": ("AsyncClient", "SyncClient"),
    "webop.context.children": ("Applied", "Children", "SyncChildren"),
    "webop.embedding": ("operator", "run", "run_tasks", "spawn_tasks"),
    "webop.handlers.admission_rules": ("rule",),
    "webop.servers.auto": ("WebhookAutoServer", "WebhookAutoTunnel"),
    "webop.servers.local": (
        *("WebhookDockerDesktopServer", "WebhookK3dServer", "WebhookMinikubeServer"),
        "WebhookServer",
    ),
    "webop.servers.service_server": ("WebhookServiceServer",),
    "webop.servers.tunnel": ("WebhookNgrokTunnel", "WebhookTunnel"),
}


def __getattr__(name: str) -> Any:
    """Import slow modules at first use (PEP 562)."""
    if place := next((each for each in (models, errors) if name in each.__all__), None):
        value = getattr(place, name)
    elif found := next((module for module, names in _LAZY.items() if name in names), None):
        value = getattr(importlib.import_module(found), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


AsyncDaemonStopperChecker = AsyncDaemonStopped
"""An older name of :class:`DaemonStopped` for async daemons."""
SyncDaemonStopperChecker = SyncDaemonStopped
"""An older name of :class:`DaemonStopped` for sync daemons."""

__all__ = [
    "ABSENT",
    "EVERYTHING",
    "PRESENT",
    "AdmissionCause",
    "AdmissionError",
    "Again",
    "AiohttpSession",
    "Annotations",
    "AnnotationsDiffBaseStorage",
    "AnnotationsProgressStorage",
    "Applied",
    "AsyncClient",
    "AsyncDaemonStopperChecker",
    "Backoff",
    "Body",
    "BodyEssence",
    "Children",
    "ConnectionInfo",
    "DaemonStopped",
    "DaemonStoppingReason",
    "Diff",
    "DiffBaseStorage",
    "DiffItem",
    "DiffOperation",
    "ErrorsMode",
    "FieldPath",
    "FieldSpec",
    "HandlerId",
    "HandlerRetriesError",
    "HandlerTimeoutError",
    "Headers",
    "Index",
    "LabelSelector",
    "Labels",
    "LocalObjectLogger",
    "LogFormat",
    "Logger",
    "LoginError",
    "Memo",
    "Meta",
    "MultiDiffBaseStorage",
    "MultiProgressStorage",
    "ObjectLogger",
    "ObjectReference",
    "Operation",
    "OperatorRegistry",
    "OperatorSettings",
    "OwnerReference",
    "Patch",
    "PatchFn",
    "PermanentError",
    "ProgressRecord",
    "ProgressStorage",
    "RawBody",
    "RawEvent",
    "RawEventType",
    "Reason",
    "Resource",
    "Rule",
    "SSLPeer",
    "SmartProgressStorage",
    "Spec",
    "Status",
    "StatusDiffBaseStorage",
    "StatusProgressStorage",
    "Store",
    "SyncChildren",
    "SyncClient",
    "SyncDaemonStopperChecker",
    "TemporaryError",
    "UserInfo",
    "Vault",
    "WebhookAutoServer",
    "WebhookAutoTunnel",
    "WebhookClientConfig",
    "WebhookClientConfigService",
    "WebhookDockerDesktopServer",
    "WebhookFn",
    "WebhookK3dServer",
    "WebhookMinikubeServer",
    "WebhookNgrokTunnel",
    "WebhookServer",
    "WebhookServerProtocol",
    "WebhookServiceServer",
    "WebhookTunnel",
    "__version__",
    "adjust_namespace",
    "adopt",
    "again",
    "all_",
    "any_",
    "append_owner_reference",
    "build_object_reference",
    "build_owner_reference",
    "client",
    "configure",
    "create_app",
    "daemon",
    "event",
    "exception",
    "execute",
    "get_default_lifecycle",
    "get_default_registry",
    "harmonize_naming",
    "index",
    "info",
    "label",
    "lifecycles",
    "login_via_async_client",
    "login_via_client",
    "login_via_pykube",
    "login_with_kubeconfig",
    "login_with_service_account",
    "none_",
    "not_",
    "now",
    "on",
    "operator",
    "reconcile",
    "register",
    "remove_owner_reference",
    "rule",
    "run",
    "run_tasks",
    "set_default_lifecycle",
    "set_default_registry",
    "spawn_tasks",
    "subhandler",
    "timer",
    "warn",
]
