"""The context of the work on the objects of one resource: settings, client, handlers, workers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from webop.calls.progress import HandlerState, digest_essence, fetch_states
from webop.client.api import Client, ObjectOptions
from webop.client.http.requests import cut_object
from webop.context.child_store import build_label
from webop.context.operator_context import OperatorContext
from webop.events.loggers import ObjectLogger
from webop.handlers.model import Reason
from webop.handlers.registry import ResourceHandlers
from webop.objects.body import Body, build_object_reference
from webop.objects.fields import Snapshot, resolve
from webop.objects.patch import Patch
from webop.objects.resources import Resource
from webop.reactor.entry import Entry
from webop.reactor.workers import Workers


@dataclass(frozen=True, slots=True)
class ResourceContext:
    """The context of the work on one resource.

    ``workers`` are shared by all namespaces of a kind.
    """

    operator: OperatorContext
    client: Client
    resource: Resource
    handlers: ResourceHandlers
    workers: Workers

    @property
    def has_status(self) -> bool:
        """Whether the status has its own endpoint (the status subresource)."""
        return "status" in self.operator.cluster_view.find(self.resource).subresources

    @property
    def is_partial(self) -> bool:
        """Whether only the metadata of objects are read: nothing else is necessary."""
        persistence, handlers = self.operator.settings.persistence, self.handlers
        storages = persistence.progress_storage, persistence.diffbase_storage
        has_records = bool(handlers.changes)
        return handlers.metadata_only and (
            not has_records or all(storage.is_in_metadata for storage in storages)
        )

    @property
    def options(self) -> ObjectOptions:
        """The options of requests about one object. The turn of the object repeats them."""
        return {
            "is_queued": True,
            "is_retried": False,
            "keeps_managed_fields": self.operator.settings.watching.managed_fields,
            "is_partial": self.is_partial,
        }

    def cut(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Return an object as handlers get it: with only its metadata, if that is enough."""
        return cut_object(raw, self.resource) if self.is_partial else raw

    def restore(self, obj: Entry, snapshot: Snapshot) -> dict[str, Any]:
        """Undo changes that handlers made in place; return the state without them."""
        raw: dict[str, Any] = snapshot.restore()
        if obj.body is snapshot.document:
            self.workers.bodies.keep(obj, raw)
        return raw

    def has_left(self, obj: Entry) -> bool:
        """Return whether an object seems deleted, but has left the selectors of the watch.

        A watch shows both alike. It still has the finalizer or records, which must be removed.
        """
        if not obj.is_gone or not self.build_selectors():
            return False
        body = Body(self.workers.bodies.load(obj) or {})
        persistence, handlers = self.operator.settings.persistence, self.handlers.changes
        states = fetch_states(handlers, body=body, storage=persistence.progress_storage)
        is_marked = persistence.finalizer in body.meta.finalizers or bool(states)
        return is_marked or obj.unwritten is not None  # records of a running handler

    def build_selectors(self) -> dict[str, str]:
        """Return the selectors of lists and watches; a kind of children needs only these."""
        found = self.operator.settings.watching.build_selectors(self.resource)
        if self.handlers.has_only_children:
            labels = sorted({build_label(handler.parent) for handler in self.handlers.children})
            own = f"{self.operator.child_names.reconciler} in ({','.join(labels)})"
            found["labelSelector"] = ",".join(filter(None, (found.get("labelSelector"), own)))
        return found

    def refer_to(self, obj: Entry) -> dict[str, Any]:
        """Return the ``extra`` that adds the reference of an object to a log message."""
        metadata = {"name": obj.name, "uid": obj.uid, "namespace": obj.namespace}
        kind, version = self.resource.kind, self.resource.api_version
        body = {"apiVersion": version, "kind": kind, "metadata": metadata}
        return {"k8s_ref": build_object_reference(body)}

    def describe(
        self, obj: Entry, body: Body, logger: type[ObjectLogger] = ObjectLogger
    ) -> dict[str, Any]:
        """Return the arguments that all causes about an object have."""
        operator = self.operator
        return {
            "logger": logger(body=body, settings=operator.settings),
            "recall": partial(operator.memos.recall, obj.uid),
            "indices": operator.indices,
            "resource": self.resource,
            "body": body,
            "patch": Patch(body=body, has_generations=self.has_status),
        }

    def digest_seen(self, key: str, state: HandlerState, essence: Any) -> str:
        """Return a digest of what a handler sees of a state of the object: its field, or all.

        Handlers of a creation have seen all: if anything else changes, an update follows.
        """
        is_creation = state.purpose == Reason.CREATE.value
        path = () if is_creation else self.handlers.find_field(key)
        return digest_essence({"": resolve(essence, path)} if path else essence)

    def build_essence(self, body: Body) -> Any:
        """Return the state of an object to store as handled: without what the framework adds."""
        persistence = self.operator.settings.persistence
        storage, fields = persistence.diffbase_storage, self.handlers.extra_fields
        return persistence.progress_storage.clear(
            essence=storage.build(body=body, extra_fields=fields)
        )
