"""The argument ``children``: how a reconciler changes its children, and looks at them."""

from __future__ import annotations

import asyncio
import builtins
import functools
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

import orjson

from webop.client.current_client import current_client
from webop.client.http.requests import cut_object, strip_object
from webop.client.objects import blocking, fit_kind, join_selector
from webop.context.child_store import (
    Child,
    Left,
    Names,
    Place,
    build_digest,
    build_label,
    build_seal,
    name_manager,
    reaches,
    read_child,
    read_digest,
)
from webop.context.field_owners import is_applied, take_over
from webop.errors import (
    APIConflictError,
    APINotFoundError,
    APITimeoutError,
    ChildConflictError,
    ConfigurationError,
    TemporaryError,
)
from webop.handlers.model import ReconcileHandler
from webop.models.definitions import is_instance, select_kind
from webop.models.fitting import dump_set
from webop.objects.body import Body, OwnerReference, build_owner_reference
from webop.objects.fields import Json, clone, convert_to_json, is_mapping, resolve
from webop.objects.label_selectors import matches_labels, parse_label_selector
from webop.objects.names import join_names
from webop.objects.resources import Resource, Selector
from webop.objects.status_conditions import meets

if TYPE_CHECKING:
    from pydantic import BaseModel

    from webop.client.objects import AsyncClient
    from webop.context.operator_context import OperatorContext
    from webop.events.loggers import Logger

M = TypeVar("M", bound="BaseModel")

# The fields that only API servers set (Kubernetes API, meta/v1 ObjectMeta).
_OF_SERVERS: Final = frozenset({
    *("creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "generation"),
    *("managedFields", "resourceVersion", "selfLink", "uid"),
})  # fmt: skip
_MANAGER_LIMIT: Final = 128
_NAMED: Final = 5  # fields in one line of the log
_CHANCES: Final = 2  # how often a child can be undone until it must be another operator
_RIVAL: Final = (
    "Another operator has the name %r, too: twice, it has undone what this one did to %s (field "
    "managers: %s). The reconciler %s of this operator prunes nothing more. Give one of the two "
    "another settings.operator.name, and start this one again."
)
_ABSENCE_DELAY: Final = 10.0  # seconds; until a kind, or the end of a child, is looked for again


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of ``children.apply()``: it is true if the child was written.

    ::

        applied = await children.apply(job)
        if applied:
            logger.info("Started %s.", applied.object["metadata"]["uid"])

    Attributes:
        is_written: whether the child was written; else it already was as wanted.
        object: the child. Only if its kind is in ``reads=``, it is whole, with its status; else it
            has apiVersion, kind, and the name, the namespace, the uid and the resource version in
            its metadata.
    """

    is_written: bool
    object: Json

    def __bool__(self) -> bool:
        return self.is_written


class Children:
    """The argument ``children`` of reconcilers and handlers of changes: the children of an object.

    ::

        await children.apply(deployment)
        if not await children.ready("deployments.apps"):
            return webop.again(after=10, reason="RollingOut")
        await children.prune()

    Kinds are named as in ``owns=``, such as ``"deployments.apps"``, or by their models. Functions
    that are not async get the same methods without ``await``. Results are never older than your own
    writes. Other handlers of changes can look at children, and delete them. Without ``adopt``, no
    method changes or deletes what is nobody's child, or that of another object or operator.

    See docs/concepts/desired_state.md; Kubernetes, "Server-Side Apply".
    """

    def __init__(
        self,
        operator: OperatorContext,
        handlers: Iterable[ReconcileHandler],
        body: Body,
        logger: Logger,
        client: AsyncClient | None = None,
        *,
        is_reconciling: bool = False,
    ) -> None:
        self._operator = operator
        self._store = operator.children
        self._view = operator.cluster_view
        self._handlers = tuple(handlers)
        self._is_reconciling = is_reconciling
        self._body = body
        self._uid: str = body.meta.raw.get("uid") or ""
        self._namespace: str | None = body.meta.raw.get("namespace")
        self.has_taken_back = False
        self.has_written = False
        self._logger = logger
        self._given_client = client
        self._applied: dict[Place, str] = {}
        self._has_failed = False

    @functools.cached_property
    def _names(self) -> Names:
        return self._operator.child_names  # not at once: few decisions lead to a call

    @functools.cached_property
    def _reference(self) -> OwnerReference:
        return build_owner_reference(self._body)

    @property
    def sync(self) -> SyncChildren:
        """The same methods for functions that run in threads."""
        return SyncChildren(self, self._client)

    @property
    def _client(self) -> AsyncClient:
        """The client of the running handler, unless another one was given."""
        client = self._given_client or current_client.get()
        if client is None:
            raise LookupError("`children` works only inside of a handler.")
        return client

    async def apply(
        self,
        child: Mapping[str, Any] | BaseModel,
        *,
        namespace: str | None = None,
        adopt: bool = False,
    ) -> Applied:
        """Create a child, or set its fields (server-side apply).

        ::

            await children.apply({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
                "data": {"greeting": spec["greeting"]},
            })

        The child gets the object as its owner, so that Kubernetes deletes both together, unless it
        is in another namespace. Fields that were applied before and are left out now are removed.
        If somebody has changed applied fields, they are taken back, with a line in the log.

        Args:
            child: with apiVersion, kind, the name, and the fields to set; or a model. Fields of a
                mapping can be models, too.
            namespace: by default that of the child, or of the object. Another one than that of the
                object needs ``across_namespaces=True`` in the decorator.
            adopt: whether an object of this name that is nobody's child becomes one.

        Raises:
            ChildConflictError: an object of this name exists, and is no child of this object, or
                that of another reconciler or operator.
            ConfigurationError: webop would not see the child: its kind is not in ``owns=``, its
                namespace is not served, or a selector of the watch hides it.
            TemporaryError: the cluster does not have its kind yet.
            ValueError: JSON cannot represent it.
            APIError: the API server refuses it, or is not reachable.
        """
        try:
            return await self._apply(child, namespace, adopt=adopt)
        except BaseException:
            self._has_failed = True
            raise

    async def _apply(
        self,
        child: Mapping[str, Any] | BaseModel,
        namespace: str | None,
        *,
        adopt: bool,
    ) -> Applied:
        self._check_reconciling()
        handler, store = self._handlers[0], self._store
        content = _dump(child)
        resource = self._find(content.get("apiVersion"), content.get("kind"))
        place, label = self._locate(handler, resource, content, namespace), build_label(handler.id)
        digest = self._mark(content, place, label)
        self._check_sight(handler, resource, content, place)
        if self._applied.setdefault(place, digest) != digest:
            text = "%s applies %s twice in one call: each call writes both, and the last one wins."
            self._logger.warning(text, handler, place, extra={"k8s_reason": "AppliedTwice"})
        async with store.applying(place):
            known, former = store.find(place), None
            is_mine = known is not None and (known.owner, known.reconciler) == (self._uid, label)
            mine = known if is_mine and known and not known.is_former else None
            if mine is not None and mine.has(digest, content):
                return Applied(is_written=False, object=await self._show(resource, mine, place))
            is_changed = mine is not None and mine.digest == digest  # by others
            undone = await self._count_undone(place)
            store.note_left(place, None)  # if the response is lost, it is not known
            if mine is None or is_changed:
                former = await self._claim(resource, place, label, adopt=adopt)
            if former is not None:  # refused if another one has taken its place
                content["metadata"]["uid"] = former["metadata"]["uid"]
                same = content if read_digest(former, self._names) == digest else None
                await self._take_over(resource, former, label, same)
            elif mine is not None and not is_changed:
                content["metadata"]["uid"] = mine.uid
            is_forced = mine is not None or former is not None
            found, causes = await self._write(content, label, is_forced=is_forced)
            version = found["metadata"].get("resourceVersion") or ""
            if causes or undone or (is_changed and mine and mine.version != version):
                self._report_taken_back(place, causes)
            before = former["metadata"] if former else {}
            versions = before.get("resourceVersion"), mine.version if mine else None
            is_written = version not in versions  # else it has changed nothing
            self.has_written |= is_written
            store.note_left(place, Left(found["metadata"]["uid"], digest, undone))
            is_read = self._is_read(resource)
            store.note_applied(place, found, self._names, is_read=is_read)
        return Applied(is_written, object=clone(found) if is_read else _cut(resource, found))

    async def _show(self, resource: Resource, child: Child, place: Place) -> Json:
        """Return a known child, as :attr:`Applied.object` has it."""
        if self._is_read(resource):
            found = clone(child.known_raw) or await self._read(resource, place)
            if found is not None:
                return strip_object(found)
        meta = {"name": place.name, "namespace": place.namespace, "uid": child.uid}
        return _cut(resource, {"metadata": {**meta, "resourceVersion": child.version}})

    def _locate(
        self, handler: ReconcileHandler, resource: Resource, content: Json, namespace: str | None
    ) -> Place:
        """Return the place of a child; leave only what can be applied, and the namespace, in it.

        API servers do not note an empty list of finalizers, for example.
        """
        given = content.get("metadata") or {}
        meta = {key: value for key, value in given.items() if value and key not in _OF_SERVERS}
        content["metadata"] = meta
        if "status" in resource.subresources:
            content.pop("status", None)
        if not meta.get("name"):
            raise ConfigurationError(f"{handler} applies {resource.plural_name} without a name.")
        place = self._place(resource, meta["name"], namespace or meta.get("namespace"))
        if place.namespace is not None:
            meta["namespace"] = place.namespace
        return place

    def _mark(self, content: Json, place: Place, label: str) -> str:
        """Add the labels, the owner and the annotation of a child; return the annotation."""
        names, meta = self._names, content["metadata"]
        own = {names.owner: self._uid, names.reconciler: label, names.operator: names.own}
        meta["labels"] = {**(meta.get("labels") or {}), **own}
        if self._namespace in (None, place.namespace):
            others = [one for one in meta.get("ownerReferences") or () if one["uid"] != self._uid]
            meta["ownerReferences"] = [*others, self._reference]
        annotations = dict(meta.pop("annotations", {}))
        annotations.pop(names.digest, None)  # of a child that was read
        if annotations:
            meta["annotations"] = annotations
        text = orjson.dumps(content, option=orjson.OPT_SORT_KEYS).decode()
        digest = f"{build_seal(place, self._uid)}.{build_digest(text, 16)}"
        meta["annotations"] = {**annotations, names.digest: digest}
        return digest

    def _check_sight(
        self, handler: ReconcileHandler, resource: Resource, content: Json, place: Place
    ) -> None:
        """Refuse a child that no watch would show."""
        problem, served = "", self._view.namespaces
        selectors = self._operator.settings.watching.build_selectors(resource)
        requirements = parse_label_selector(selectors.get("labelSelector", ""))
        if not any(selector.check(resource) for selector in handler.owns):
            problem = "Its kind is not in owns= of the reconciler: add it."
            for one in (
                kind for each in handler.owns for kind in each.select(self._view.resources)
            ):
                if one.plural_name == place.kind:
                    wanted = f"apply that, or own {resource.name!r}"
                    problem = f"owns= has its kind in {one.version}: {wanted}."
        elif not reaches(self._namespace, handler, place):
            problem = "It is not in the namespace of its parent: say across_namespaces=True."
        elif place.namespace and served is not None and place.namespace not in served:
            problem = "The operator does not serve its namespace (--namespace)."
        elif not matches_labels(requirements or [], content["metadata"]["labels"]):
            problem = "It lacks labels that settings.watching.label_selectors wants."
        if problem:
            raise ConfigurationError(f"{handler} cannot apply {place}. {problem}")

    async def _read(self, resource: Resource, place: Place) -> Json | None:
        try:
            return await self._client.get(
                resource, place.name, namespace=place.namespace, managed_fields=True
            )
        except APINotFoundError as exc:
            if not exc.details.get("name"):
                raise
            return None

    async def _claim(
        self, resource: Resource, place: Place, label: str, *, adopt: bool
    ) -> Json | None:
        """Return the child at a place that is not known, if an apply can take fields of others."""
        if (found := await self._read(resource, place)) is None:
            return None
        meta = found["metadata"]
        owners = {one.get("uid") for one in meta.get("ownerReferences") or ()}
        labels = meta.get("labels") or {}
        owner, reconciler, operator = map(labels.get, self._names[:3])
        digest = read_digest(found, self._names)
        if owner and owner != self._uid and not digest.startswith(build_seal(place, owner)):
            owner = None  # no reconciler has applied it
        applied = {one["manager"] for one in meta.get("managedFields") or () if is_applied(one)}
        is_others = bool(owner) and operator not in (None, self._names.own)
        is_others = is_others and self._name_manager(label) not in applied  # else a user set it
        if is_others:
            is_ours = False
        elif owner == self._uid:  # the reconciler can have had another id; "" would ask for any
            is_ours = reconciler == label or not self._store.has_parent(owner, reconciler or "?")
        elif owner:  # its parent can be gone
            is_ours = not (owners - {self._uid} or await self._has_parent(owner))
        else:
            is_ours = self._uid in owners
        if not (is_ours or (adopt and not owner)):
            whose, advice = "nobody's child", "Delete it, or pass adopt=True."
            if is_others:
                whose = f"the child of another operator, {operator!r}"
                advice = (
                    f"Choose another name for it. If this operator ({self._names.own!r}) continues "
                    f"the work of that one, set settings.operator.name = {operator!r}."
                )
            elif owner == self._uid:
                whose = f"the child of another reconciler of this object, {reconciler!r}"
                advice = "Apply it in one of them, or under two names."
            elif owner:
                whose = f"the child of another object (uid {owner})"
                advice = (
                    "If that object is gone, the garbage collector deletes the child soon; "
                    "'webop cluster start' runs it with --controller-manager."
                )
            raise ChildConflictError(f"There is {place} already: it is {whose}. {advice}")
        return found if is_ours else None

    async def _has_parent(self, uid: str) -> bool:
        """Return whether an object has a reconciler, here or at another replica."""
        if self._store.has_parent(uid):
            return True
        if not self._operator.ownership.is_divided:
            return False
        handlers = self._operator.registry.select_resource_handlers()
        parents = {one.selector for one in handlers if isinstance(one, ReconcileHandler)}
        served = self._view.namespaces
        kinds = {kind for one in parents if one for kind in one.select(self._view.resources)}
        for resource in kinds:
            places = served if resource.namespaced and served is not None else (None,)
            for namespace in places:
                if await self._client.has_uid(resource, uid, namespace=namespace):
                    return True
        return False

    def _name_manager(self, label: str) -> str:
        end, own = name_manager(label, self._uid), self._operator.settings.field_manager
        return f"{own[: _MANAGER_LIMIT - len(end)]}{end}"

    async def _take_over(
        self, resource: Resource, found: Json, label: str, content: Json | None
    ) -> None:
        """Let the next apply remove what others have left in a child."""
        manager, meta = self._name_manager(label), found["metadata"]
        labels = meta.get("labels") or {}
        names = labels.get(self._names.reconciler, label), labels.get(self._names.owner, self._uid)
        entries = take_over(found, manager, name_manager(*names), content)
        if entries is not None:
            test = {"path": "/metadata/resourceVersion", "value": meta["resourceVersion"]}
            change = {"path": "/metadata/managedFields", "value": entries}
            patch = [{"op": "test", **test}, {"op": "replace", **change}]
            where = meta.get("namespace")
            await self._client.patch(resource, meta["name"], patch, namespace=where)

    async def _write(
        self, content: Json, label: str, *, is_forced: bool
    ) -> tuple[Json, builtins.list[Json]]:
        """Apply a child; return it, and the conflicts about fields of others that were taken."""
        manager = self._name_manager(label)
        try:
            return await self._client.apply(content, field_manager=manager), []
        except APIConflictError as exc:
            causes: Any = exc.details.get("causes") or ()
            if not (is_forced and causes):
                raise
        return await self._client.apply(content, field_manager=manager, force=True), [*causes]

    def _report_taken_back(self, place: Place, causes: Iterable[Json]) -> None:
        """Note and log that somebody has changed a child: there is no conflict about removals."""
        self.has_taken_back = True
        found = [f"{one.get('field')} ({one.get('message')})" for one in causes]
        fields = f": {join_names(found, _NAMED)}" if found else ""
        text, extra = "Taking back what was changed in %s%s.", {"k8s_reason": "TakenBack"}
        self._logger.info(text, place, fields, extra=extra)

    async def prune(self) -> builtins.list[str]:
        """Delete the children that were not applied in this call; return their names.

        Call it at the end, when all children have been applied. After an apply that has failed in
        this call, it does nothing. Children of kinds in ``accumulates=`` stay, and so do those of
        other objects, reconcilers and operators, and those that another object controls.
        """
        self._check_reconciling()
        if self._has_failed:
            text = "Nothing is pruned: an apply has failed in this call."
            self._logger.warning(text, extra={"k8s_reason": "NotPruned"})
            return []
        kinds = self._name_kinds(one for each in self._handlers for one in each.accumulates)
        unwanted = {
            place: child
            for place, child in self._list_own()
            if place not in self._applied and not child.is_deleting and place.kind not in kinds
        }
        for place in unwanted:
            await self._count_undone(place)
        rivalled = self._store.rivalled
        return await self._delete(
            place for place, child in unwanted.items() if child.reconciler not in rivalled
        )

    async def _count_undone(self, place: Place) -> int:
        """Return how often in a row a child was undone; the second time, stop pruning."""
        undone, child = self._store.count_undone(place), self._store.find(place)
        kind, rivalled = self._view.find_plural(place.kind), self._store.rivalled
        if undone < _CHANCES or not (child and kind) or child.reconciler in rivalled:
            return undone
        found = await self._read(kind, place)
        entries = found["metadata"].get("managedFields") or () if found else ()
        applied = [one for one in entries if is_applied(one)]
        managers = join_names([one["manager"] for one in applied], _NAMED)
        annotation = ("fieldsV1", "f:metadata", "f:annotations", f"f:{self._names.digest}")
        was_edited = all(resolve(one, annotation) is None for one in applied)  # as by kubectl
        if not was_edited and child.reconciler not in rivalled:
            rivalled.add(child.reconciler)
            extra = {"k8s_reason": "NotPruned"}
            told = self._names.own, place, managers, child.reconciler
            self._logger.error(_RIVAL, *told, extra=extra)
        return undone

    async def delete_all(self, *, wait: float | None = None) -> builtins.list[str]:
        """Delete all children, in the reverse order of ``owns=``; return their names.

        Call it in a deletion handler if the children must be gone before the object, or in an
        order. Otherwise, Kubernetes deletes them after the object.

        Args:
            wait: seconds to wait for the end of those of a kind before those of the next kind are
                deleted. If they are not gone then, the handler is called again.

        Raises:
            TemporaryError: children are not gone yet.
        """
        deleted: builtins.list[str] = []
        for handler in self._handlers:
            for selector in reversed((*handler.formerly_owns, *handler.owns)):
                places = [place for place, _ in self._list_own(selector)]
                deleted += await self._delete(places)
                if wait is not None:
                    await self._wait_gone(places, wait)
        return deleted

    async def delete(
        self, kind: str | type[BaseModel], name: str, *, namespace: str | None = None
    ) -> bool:
        """Delete a child; return False if there is none, or if it is being deleted.

        ::

            for job in jobs[:-spec.history]:
                await children.delete("jobs.batch", job["metadata"]["name"])

        Kubernetes deletes what the child owns after it. Its end calls the reconciler.
        """
        place = self._place(self._select(kind), name, namespace)
        own = {known for known, _ in self._list_own()}
        return bool(await self._delete({place} & own))

    @overload
    async def get(self, kind: type[M], name: str, *, namespace: str | None = None) -> M | None: ...
    @overload
    async def get(self, kind: str, name: str, *, namespace: str | None = None) -> Json | None: ...
    async def get(
        self, kind: str | type[BaseModel], name: str, *, namespace: str | None = None
    ) -> Any:
        """Return a child, as a model if the kind is one; None if there is none.

        It comes from memory if its kind is in ``reads=``, otherwise from the API server. That there
        is none is always the word of the API server: it is safe to make a password then.

        Raises:
            MisfitError: it does not fit the model.
        """
        found = await self._get(self._select(kind), name, namespace)
        return None if found is None else fit_kind(kind, found)

    async def _get(self, resource: Resource, name: str, namespace: str | None) -> Json | None:
        place = self._place(resource, name, namespace)
        child = self._store.find(place)
        found = clone(child.known_raw) if child is not None else None
        if found is None and (found := await self._read(resource, place)) is None:
            return None
        seen = read_child(place, found, self._names, is_read=False)
        return found if seen is not None and seen.owner == self._uid else None

    @overload
    async def list(
        self, kind: type[M], *, labels: Mapping[str, str] | str | None = None
    ) -> builtins.list[M]: ...
    @overload
    async def list(
        self, kind: str, *, labels: Mapping[str, str] | str | None = None
    ) -> builtins.list[Json]: ...
    async def list(
        self,
        kind: str | type[BaseModel],
        *,
        labels: Mapping[str, str] | str | None = None,
    ) -> Any:
        """Return all children of a kind, or those with labels, as :meth:`get` does; by their names.

        ::

            failed = await children.list("jobs.batch", labels={"run": "failed"})

        Labels are a mapping, or a selector such as ``"run in (failed, stopped)"``.

        Raises:
            ValueError: it is no selector.
        """
        requirements = parse_label_selector(text := join_selector(labels))
        if requirements is None:
            raise ValueError(f"children.list(): {text!r} is no selector of labels.")
        found = [one async for one in self._list_children(kind)]
        return [
            fit_kind(kind, one)
            for one in found
            if matches_labels(requirements, one["metadata"].get("labels") or {})
        ]

    async def _list_children(self, kind: str | type[BaseModel]) -> AsyncIterator[Json]:
        resource = self._select(kind)
        for place in sorted(place for place, _ in self._list_known(select_kind(kind))):
            if (found := await self._get(resource, place.name, place.namespace)) is not None:
                yield found

    async def ready(
        self,
        kind: str | type[BaseModel],
        condition: str = "Available",
        *,
        name: str | None = None,
    ) -> bool:
        """Return whether a condition holds for all children of a kind, or for the named one.

        ::

            if not await children.ready("deployments.apps"):
                return webop.again(after=10, reason="The deployment rolls out.")

        Conditions are such as "Available" or "Ready=False". One that is about a former generation
        of the child does not count. Without children of the kind, the answer is False.
        """
        children = [one async for one in self._list_children(kind)]
        found = [one for one in children if name in (None, one["metadata"]["name"])]
        return bool(found) and all(meets(one, condition) for one in found)

    def _list_own(self, selector: Selector | None = None) -> Iterator[tuple[Place, Child]]:
        """Yield the children that can be deleted, of a kind or of all."""
        return (each for each in self._list_known(selector) if not each[1].is_former)

    def _list_known(self, selector: Selector | None) -> Iterator[tuple[Place, Child]]:
        """Yield the children of these reconcilers for this object, of a kind or of all."""
        handlers = {build_label(handler.id): handler for handler in self._handlers}
        kinds = None
        if selector is not None:
            kinds = {one.plural_name for one in selector.find_candidates(self._view.resources)}
        for place, child in self._store.list_of(self._uid):
            handler = handlers.get(child.reconciler)
            if handler is None or child.controller not in (None, self._uid):
                continue
            if reaches(self._namespace, handler, place) and (kinds is None or place.kind in kinds):
                yield place, child

    async def _delete(self, places: Iterable[Place]) -> builtins.list[str]:
        deleted: builtins.list[str] = []
        for place in places:
            child, kind = self._store.find(place), self._view.find_plural(place.kind)
            if child is None or child.is_deleting or kind is None:
                continue
            try:
                await self._client.delete(
                    kind,
                    place.name,
                    namespace=place.namespace,
                    missing_ok=True,
                    propagation="Background",
                    uid=child.uid,
                )
            except APIConflictError:  # it was replaced: that one is not ours
                continue
            child.is_deleting = self.has_written = True
            self._store.note_left(place, Left(child.uid, "", self._store.count_undone(place)))
            extra = {"k8s_reason": "ChildDeleted"}
            self._logger.info("Deleted the child %s.", place, extra=extra)
            deleted.append(place.name)
        return deleted

    async def _wait_gone(self, places: Iterable[Place], seconds: float) -> None:
        client, loop = self._client, asyncio.get_running_loop()
        end = loop.time() + seconds
        for place in places:
            if (kind := self._view.find_plural(place.kind)) is None:
                continue
            try:
                rest = max(0.1, end - loop.time())
                await client.wait_gone(kind, place.name, namespace=place.namespace, timeout=rest)
            except APITimeoutError as exc:
                text = f"The child {place} is not gone yet."
                raise TemporaryError(text, delay=_ABSENCE_DELAY) from exc

    def _find(self, api_version: Any, kind: Any) -> Resource:
        if not (api_version and kind):
            raise ConfigurationError("A child needs its apiVersion and its kind.")
        if (resource := self._view.find_kind(api_version, kind)) is not None:
            return resource
        text = f"The cluster does not have the kind {kind} of {api_version} yet."
        raise TemporaryError(text, delay=_ABSENCE_DELAY)

    def _select(self, kind: str | type[BaseModel]) -> Resource:
        """Return an owned kind: webop does not know the children of others."""
        selector = select_kind(kind)
        found = [*selector.find_candidates(self._view.resources)]
        if len(found) != 1:
            text = f"The cluster has no single kind {selector} yet."
            raise TemporaryError(text, delay=_ABSENCE_DELAY)
        owned = (one for each in self._handlers for one in (*each.owns, *each.formerly_owns))
        if found[0].plural_name in self._name_kinds(owned):
            return found[0]
        whose = join_names(map(str, self._handlers))
        raise ConfigurationError(
            f"{found[0].plural_name} are not in owns= of {whose}: add them, or use the client."
        )

    def _check_reconciling(self) -> None:
        if not self._is_reconciling:
            raise ConfigurationError(
                "children.apply() and children.prune() are for functions with @webop.reconcile. "
                "Other handlers can call delete_all(), delete(), get(), list() and ready()."
            )

    def _place(self, resource: Resource, name: str, namespace: str | None) -> Place:
        where = (namespace or self._namespace) if resource.namespaced else None
        if resource.namespaced and where is None:
            text = f"The child {name!r} of {resource.plural_name} needs namespace=."
            raise ConfigurationError(f"{text} Its parent is in no namespace.")
        return Place(resource.plural_name, where, name)

    def _name_kinds(self, selectors: Iterable[Selector]) -> set[str]:
        resources = self._view.resources
        return {one.plural_name for selector in selectors for one in selector.select(resources)}

    def _is_read(self, resource: Resource) -> bool:
        return any(one.check(resource) for handler in self._handlers for one in handler.reads)


class SyncChildren:
    """The methods of :class:`Children` for functions that run in threads."""

    def __init__(self, asynchronous: Children, client: AsyncClient) -> None:
        self.asynchronous = asynchronous
        self.wait = client.sync.wait

    apply = blocking(Children.apply)
    prune = blocking(Children.prune)
    delete = blocking(Children.delete)
    delete_all = blocking(Children.delete_all)
    get = blocking(Children.get)
    list = blocking(Children.list)
    ready = blocking(Children.ready)


def _dump(child: Mapping[str, Any] | BaseModel) -> Json:
    """Return what a child says; models in a mapping count, too."""
    if is_instance(child):
        return dump_set(child)
    try:
        found: Json = convert_to_json(child)
    except ValueError:
        found = convert_to_json(_unwrap(child))
    return found


def _unwrap(value: Any) -> Any:
    if is_instance(value):
        return {key: part for key, part in dump_set(value).items() if part is not None}
    if is_mapping(value):
        return {key: _unwrap(part) for key, part in value.items()}
    return [*map(_unwrap, value)] if isinstance(value, list | tuple) else value


def _cut(resource: Resource, found: Json) -> Json:
    """Return of a child what is known of one whose kind is not read."""
    names = "name", "namespace", "uid", "resourceVersion"
    meta = {key: found["metadata"][key] for key in names if found["metadata"].get(key)}
    return cut_object({"metadata": meta}, resource)
