"""Answering admission reviews: find the handlers, call them, put their verdicts together.

Flow: the ASGI endpoint → :meth:`AdmissionService.__call__` →
:func:`webop.handling.execute.execute` → the user's function.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from webop.admission.review import Review, build_response, parse_review, rank_errors
from webop.errors import ReviewError
from webop.handling.causes import WebhookCause
from webop.handling.context import OperatorContext
from webop.handling.execute import Terms, execute
from webop.handling.handlers import ErrorsMode, WebhookHandler
from webop.handling.progress import Progress
from webop.handling.registry import select_webhooks
from webop.objects.body import Body
from webop.objects.diffs import diff
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
        self._handlers = operator.registry.select_webhooks()
        self._terms = Terms(
            operator.settings, default_errors=ErrorsMode.PERMANENT, success_level=logging.DEBUG
        )

    @property
    def ids(self) -> list[str]:
        """The ids of all handlers, which are the paths of their webhooks."""
        return [handler.id for handler in self._handlers]

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
            webhook: the id of the handler asked for; None for all that match (D-52).
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
        handlers = self._find_handlers(review, webhook)
        cause = self._build_cause(review, headers or {}, sslpeer)
        chosen = select_webhooks(handlers, cause, id=webhook)
        outcomes = await execute(chosen, cause, Progress.start(chosen), self._terms)
        errors = [o.exception for o in outcomes.values() if isinstance(o.exception, Exception)]
        return build_response(
            review,
            warnings=cause.warnings,
            patch_ops=[] if errors else cause.patch.as_json_patch(cause.body),
            error=rank_errors(errors),
        )

    def _find_handlers(self, review: Review, webhook: str | None) -> list[WebhookHandler]:
        """Return the handlers of the resource of a review.

        Raises:
            ReviewError: there is no such handler, or none for the resource (404).
        """
        asked = [handler for handler in self._handlers if webhook in (None, handler.id)]
        if not asked:
            known = ", ".join(self.ids) or "none"
            raise ReviewError(f"There is no webhook {webhook!r}; known: {known}.", status=404)
        resource = self._find_resource(review)
        found = [h for h in asked if h.selector is not None and h.selector.check(resource)]
        if not found:
            whose = "There are no webhooks" if webhook is None else f"Webhook {webhook!r} is not"
            raise ReviewError(f"{whose} for {resource.name}.", status=404)
        return found

    def _find_resource(self, review: Review) -> Resource:
        named = Resource(
            group=review.group, version=review.version, plural=review.plural, kind=review.kind
        )
        return self._operator.insights.find(named)

    def _build_cause(
        self, review: Review, headers: Mapping[str, str], sslpeer: Mapping[str, Any] | None
    ) -> WebhookCause:
        body = Body(review.body)
        old, new = review.old_object, review.object
        uid = None if review.operation == "CREATE" else body.meta.uid
        return WebhookCause(
            logger=LocalObjectLogger(body=body, settings=self._operator.settings),
            memo=self._operator.memos.peek(uid),
            indices=self._operator.indices,
            resource=self._find_resource(review),
            body=body,
            patch=Patch(body=body),
            old=None if old is None else Body(old),
            new=None if new is None else Body(new),
            diff=diff(old, new),
            operation=review.operation,
            subresource=review.subresource,
            dryrun=review.dryrun,
            userinfo=review.userinfo,
            warnings=[],
            headers=headers,
            sslpeer=sslpeer,
        )
