"""Whether the API server can call the webhooks: it is let try, by dry runs.

Flow: for each webhook, something that it is asked about is looked for, an object or a place for
one (:mod:`webop.doctor.attempts`); the request is sent; what the answer tells about this webhook
and others is judged in :mod:`webop.doctor.evidence`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from webop.doctor.attempts import (
    Attempt,
    Target,
    build_creation,
    build_update,
    explain_impossible,
    list_targets,
)
from webop.doctor.evidence import Answer, judge, read_answer
from webop.doctor.findings import Finding
from webop.doctor.records import Json, Record
from webop.doctor.selectors import build_query, matches_labels
from webop.doctor.visit import Visit
from webop.errors import APIError, APIForbiddenError

_AT_ONCE = 4  # requests; a webhook that does not answer takes 30 s
_LOOKED_AT = 50  # objects of a kind
_TRIED_TARGETS = 5  # kinds of objects for one webhook
_NAMESPACES = "/api/v1/namespaces"
_NAME_LABEL = "kubernetes.io/metadata.name"


class Probing:
    """Attempts to let the API server call webhooks, with what they have told.

    Args:
        visit: the examination.
    """

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._sent: dict[tuple[str, str, bytes], asyncio.Task[Answer]] = {}
        self._own: dict[tuple[str, str], Answer | str] = {}
        self._namespaces: dict[str, dict[str, str]] | None = None

    async def run(self, records: Iterable[Record]) -> None:
        """Try all webhooks.

        Raises:
            APIError: the API server is not available.
        """
        self._namespaces = await self._fetch_namespaces()
        chosen = list(records)
        # All are waited for: they share what they send.
        answers = await asyncio.gather(*map(self._try, chosen), return_exceptions=True)
        for record, answer in zip(chosen, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            self._own[record.reason, record.name] = answer

    def judge(self, records: Iterable[Record]) -> Iterator[Finding]:
        """Yield what is known of webhooks that have been tried."""
        everything = [answer for answer in self._own.values() if isinstance(answer, Answer)]
        for record in records:
            own = self._own[record.reason, record.name]
            yield judge(record, own, everything, self._visit.username)

    async def _try(self, record: Record) -> Answer | str:
        if reason := explain_impossible(record):
            return reason
        attempt = await self._find_attempt(record)
        return attempt if isinstance(attempt, str) else await self._send(attempt)

    async def _find_attempt(self, record: Record) -> Attempt | str:
        targets = list(list_targets(record, self._visit.resources))
        for target in targets[:_TRIED_TARGETS]:
            attempt = await self._build(record, target)
            if attempt is not None:
                return attempt
        if targets:
            names = ", ".join(dict.fromkeys(map(str, targets)))
            return f"there is nothing to try it on: an object of {names} that it is asked about"
        return "it is asked only about what a dry run cannot try, or is not in the cluster"

    async def _build(self, record: Record, target: Target) -> Attempt | None:
        """Return what to send about a kind of objects; None if there is no way."""
        found = await self._find_object(record, target)
        if found is not None and "UPDATE" in target.operations:
            return build_update(target, found)
        if "CREATE" not in target.operations or target.subresource:
            return None
        namespace = self._choose_namespace(record, found) if target.resource.namespaced else None
        if target.resource.namespaced and namespace is None:
            return None
        return build_creation(target, namespace, record.webhook.get("objectSelector"), found)

    async def _find_object(self, record: Record, target: Target) -> Json | None:
        """Return an object that the webhook is asked about, if there is one that can be read."""
        query = build_query(record.webhook.get("objectSelector"))
        params = {"limit": str(_LOOKED_AT), **({"labelSelector": query} if query else {})}
        for place in self._list_places(target):
            try:
                answer = await self._visit.read(target.resource.get_url(namespace=place), params)
            except APIForbiddenError:
                continue
            for item in (answer or {}).get("items") or ():
                metadata = item["metadata"]
                namespace = metadata.get("namespace")
                if "deletionTimestamp" not in metadata and self._is_served(record, namespace):
                    found: Json = item
                    return found
        return None

    def _list_places(self, target: Target) -> Sequence[str | None]:
        """Return where to look for objects; None stands for the whole cluster."""
        visit = self._visit
        if not target.resource.namespaced:
            return [None]
        return visit.options.namespaces or (None, visit.namespace)

    def _choose_namespace(self, record: Record, found: Json | None) -> str | None:
        """Return a namespace whose objects the webhook is asked about."""
        visit = self._visit
        present = "" if found is None else found["metadata"].get("namespace", "")
        others = (visit.namespace, "default", *(self._namespaces or ()))
        candidates = (present, *(visit.options.namespaces or others))
        served = (name for name in candidates if name and self._is_served(record, name))
        return next(served, None)

    def _is_served(self, record: Record, namespace: str | None) -> bool:
        """Tell whether the webhook is asked about a namespace, or about what belongs to none."""
        if namespace is None:
            return True
        labels = (self._namespaces or {}).get(namespace, {_NAME_LABEL: namespace})
        return matches_labels(record.webhook.get("namespaceSelector"), labels)

    async def _fetch_namespaces(self) -> dict[str, dict[str, str]] | None:
        """Return the labels of the namespaces; None if they may not be read."""
        try:
            answer = await self._visit.read(_NAMESPACES) or {}
        except APIForbiddenError:
            return None
        metadata = [item["metadata"] for item in answer.get("items") or ()]
        return {item["name"]: item.get("labels") or {} for item in metadata}

    async def _send(self, attempt: Attempt) -> Answer:
        """Send a request, each one only once."""
        if attempt.key not in self._sent:
            self._sent[attempt.key] = asyncio.ensure_future(self._exchange(attempt))
        return await self._sent[attempt.key]

    async def _exchange(self, attempt: Attempt) -> Answer:
        error: APIError | None = None
        async with self._gate:
            try:
                await self._visit.ask(
                    attempt.method,
                    attempt.path,
                    attempt.body,
                    content_type=attempt.content_type,
                    is_dry=True,
                )
            except APIError as exc:
                error = exc
        return read_answer(attempt.description, error)
