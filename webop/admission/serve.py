"""Answering admission reviews: find the handlers, call them, put their verdicts together.

Flow: the ASGI endpoint → :meth:`AdmissionService.__call__` →
:func:`webop.handling.execute.attempt` → the user's function.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from webop.admission.configurations import build_service_id, build_typed_id
from webop.admission.review import Review, build_response, parse_review, rank_errors
from webop.errors import ReviewError
from webop.handling.causes import WebhookCause
from webop.handling.context import OperatorContext
from webop.handling.execute import attempt
from webop.handling.handlers import ErrorsMode, WebhookHandler
from webop.handling.progress import HandlerState, now
from webop.handling.registry import select_webhooks
from webop.handling.terms import Terms
from webop.objects.body import Body
from webop.objects.diffs import diff
from webop.objects.fields import clone
from webop.objects.patch import Patch
from webop.objects.resources import Resource
from webop.posting import LocalObjectLogger, current_poster


class AdmissionService:
    """The callable that webhook servers hand reviews to (protocol ``webop.WebhookFn``).

    It needs no cluster: resources that are not known from a discovery are taken as the review
    names them.
    """

    def __init__(self, operator: OperatorContext) -> None:
        self._operator = operator
        self._terms = Terms(
            operator.settings, default_errors=ErrorsMode.PERMANENT, success_level=logging.DEBUG
        )
        self._handlers: Sequence[WebhookHandler] = ()
        self._named: dict[str, list[WebhookHandler]] = {}
        self.take_handlers()

    def take_handlers(self) -> None:
        """Take over what is registered by now: startup handlers may have registered more."""
        self._handlers = self._operator.registry.select_webhooks()
        self._named = {}
        for handler in self._handlers:
            names = (handler.id, build_typed_id(handler))
            for name in dict.fromkeys((*names, *map(build_service_id, names))):
                self._named.setdefault(name, []).append(handler)

    @property
    def ids(self) -> list[str]:
        """The ids of all handlers, which are the paths of their webhooks."""
        return list(dict.fromkeys(handler.id for handler in self._handlers))

    async def __call__(
        self,
        request: Mapping[str, Any],
        *,
        webhook: str | None = None,
        headers: Mapping[str, str] | None = None,
        sslpeer: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Serve one AdmissionReview (Kubernetes API, admission/v1).

        Args:
            request: the review as parsed from JSON.
            webhook: the id of the handler asked for, or what stands for it behind a Service;
                None for all that match (D-52).
            headers: the HTTP headers of the request, for the handlers.
            sslpeer: the verified client certificate, as ``ssl.SSLSocket.getpeercert()`` has it.

        Returns:
            The review with the response, to be serialised as JSON.

        Raises:
            ReviewError: the request is not a review, or nobody here is responsible for it: such
                a request is refused, never allowed.
        """
        current_poster.set(self._operator.poster)  # the server's tasks are not of the operator
        review = parse_review(request)
        named = _name_resource(review.group, review.version, review.plural, review.kind)
        resource = self._operator.insights.find(named)
        handlers = self._find_handlers(resource, webhook)
        cause = self._build_cause(review, resource, headers or {}, sslpeer)
        patch_ops: list[dict[str, Any]] = []
        try:
            errors = await self._judge(select_webhooks(handlers, cause), cause)
            if not errors:
                patch_ops = cause.patch.as_json_patch(cause.body)
        except Exception as exc:  # of the users' callbacks: in filters, in patch.fns
            cause.logger.exception("A filter or a patch function of the webhooks has failed.")
            errors = [exc]
        return build_response(
            review, warnings=cause.warnings, patch_ops=patch_ops, error=rank_errors(errors)
        )

    def _find_handlers(self, resource: Resource, webhook: str | None) -> list[WebhookHandler]:
        """Return the handlers of a resource.

        Raises:
            ReviewError: there is no such handler, or none for the resource (404).
        """
        asked = self._handlers if webhook is None else self._named.get(webhook, ())
        if webhook is not None and not asked:
            known = ", ".join(self.ids) or "none"
            raise ReviewError(f"There is no webhook {webhook!r}; known: {known}.", status=404)
        name = None if webhook is None else asked[0].id
        found = [h for h in asked if h.selector is not None and h.selector.check(resource)]
        if not found:
            raise ReviewError(self._explain_absence(asked, resource, name), status=404)
        return found

    def _explain_absence(
        self, asked: Iterable[WebhookHandler], resource: Resource, name: str | None
    ) -> str:
        if name is None:
            text = f"There are no webhooks for {resource.name}."
        else:
            selectors = " and ".join(dict.fromkeys(str(handler.selector) for handler in asked))
            text = f"Webhook {name!r} is for {selectors}, not for {resource.name}."
        if not self._operator.insights.is_known:
            text += " Without a cluster, resources are known by their plurals and kinds only."
        return text

    async def _judge(self, handlers: Iterable[WebhookHandler], cause: WebhookCause) -> list[Any]:
        """Call the handlers, each on its own, and return the errors of those that object."""
        errors = []
        for handler in handlers:
            before = _copy(cause.patch) if handler.ignore_failures else None
            outcome = await attempt(handler, cause, HandlerState(started=now()), self._terms)
            if outcome.exception is None:
                continue
            if before is None:
                errors.append(outcome.exception)
            else:  # a failure that is to be tolerated, but not in silence (ADM-17)
                reason = str(outcome.exception) or repr(outcome.exception)
                cause.warnings.append(f"{handler.id}: {reason}")
                _restore(cause.patch, before)
        return errors

    def _build_cause(
        self,
        review: Review,
        resource: Resource,
        headers: Mapping[str, str],
        sslpeer: Mapping[str, Any] | None,
    ) -> WebhookCause:
        body = Body(review.body)
        old, new = review.old_object, review.object
        uid = None if review.operation == "CREATE" else body.meta.uid
        try:
            difference = diff(old, new)
        except RecursionError:
            raise ReviewError("The object of the review is nested too deeply.") from None
        return WebhookCause(
            logger=LocalObjectLogger(body=body, settings=self._operator.settings),
            memo=self._operator.memos.peek(uid),
            indices=self._operator.indices,
            resource=resource,
            body=body,
            patch=Patch(body=body),
            old=None if old is None else Body(old),
            new=None if new is None else Body(new),
            diff=difference,
            operation=review.operation,
            subresource=review.subresource,
            dryrun=review.dryrun,
            userinfo=review.userinfo,
            warnings=[],
            headers=headers,
            sslpeer=sslpeer,
            name=review.name,
            namespace=review.namespace,
        )


@functools.lru_cache(maxsize=1024)
def _name_resource(group: str, version: str, plural: str, kind: str) -> Resource:
    return Resource(group=group, version=version, plural=plural, kind=kind)


def _copy(patch: Patch) -> Patch:
    return Patch(clone(patch), fns=patch.fns)


def _restore(patch: Patch, before: Patch) -> None:
    patch.clear()
    patch.update(before)
    patch.fns.extend(before.fns)
