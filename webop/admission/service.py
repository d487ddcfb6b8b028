"""Serve admission reviews: find the handlers, call them, build the response.

Flow: the ASGI endpoint → :meth:`AdmissionService.__call__` for the review →
:meth:`AdmissionService._call` for each handler → :func:`webop.calls.execution.attempt` → the
user's function.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from webop.admission import conversion_reviews
from webop.admission.configurations.building import build_service_id, build_typed_id
from webop.admission.response import (
    PatchError,
    build_response,
    clean_line,
    describe_error,
    encode_patch,
    rank_errors,
)
from webop.admission.review import Review, parse_review
from webop.admission.review_logging import ReviewLogger, describe_review, log_response
from webop.aio.backoff import Once
from webop.aio.cancellation import convert_exception
from webop.calls.error_policy import describe
from webop.calls.execution import attempt
from webop.calls.instrumentation import is_denial
from webop.calls.shared_options import CallOptions
from webop.calls.threads import count_abandoned
from webop.context.operator_context import OperatorContext
from webop.errors import AdmissionError, ReviewError
from webop.events.loggers import current_poster
from webop.handlers.causes import WebhookCause
from webop.handlers.model import WebhookHandler, WebhookType
from webop.handlers.registry import select_webhooks
from webop.logs.review_context import review_of_the_moment
from webop.objects.body import Body
from webop.objects.fields import Snapshot, clone
from webop.objects.patch import Patch
from webop.objects.resources import Resource
from webop.servers.limits import Hosting
from webop.telemetry.tracing import NOT_TRACED, Description, open_span

if TYPE_CHECKING:
    from webop.telemetry.spans import Span

_IDENTITY = ("/metadata/name", "/metadata/namespace", "/metadata/uid")
_UNPATCHED = Patch()


class AdmissionService:
    """The function that webhook servers call with each review (protocol ``webop.WebhookFn``).

    It works without a cluster: the review itself names the resource.

    Attributes:
        conversion: serves conversion reviews, which come to the same port.
    """

    def __init__(self, operator: OperatorContext, hosting: Hosting) -> None:
        self._operator = operator
        self._hosting = hosting
        self._gate = hosting.gate
        self._counters = hosting.counters
        self.conversion = conversion_reviews.ConversionService(operator, hosting)
        self._options = CallOptions(operator.settings, counters=operator.counters)
        self._handlers: Sequence[WebhookHandler] = ()
        self._named: dict[str, list[WebhookHandler]] = {}
        self._warned = Once()  # a handler makes the same mistake in each review
        self.update_handlers()

    def update_handlers(self) -> None:
        """Read the registry again: startup handlers may have registered more."""
        self._handlers = self._operator.registry.select_webhooks()
        self._named = {}
        for handler in self._handlers:
            names = (handler.id, build_typed_id(handler))
            for name in dict.fromkeys((*names, *map(build_service_id, names))):
                self._named.setdefault(name, []).append(handler)
        self.conversion.update_handlers()
        labels = {name: found[0].id for name, found in self._named.items()}
        if self.conversion.kinds:
            labels.setdefault(conversion_reviews.PATH, conversion_reviews.PATH)
        self._counters.names = labels

    @property
    def ids(self) -> list[str]:
        """The ids of all handlers: the paths of their webhooks."""
        return list(dict.fromkeys(handler.id for handler in self._handlers))

    async def __call__(
        self,
        request: Mapping[str, Any],
        *,
        webhook: str | None = None,
        headers: Mapping[str, str] | None = None,
        sslpeer: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Serve one AdmissionReview (Kubernetes API, admission/v1), or a ConversionReview.

        The webhook is an id of a handler, or its form behind a Service (:func:`build_service_id`).

        Raises:
            ReviewError: the request is not a review, no handler matches, or too many reviews are
                being served (429).
        """
        if isinstance(request, dict) and request.get("kind") == conversion_reviews.KIND:
            return await self.conversion(request, headers)
        review = parse_review(request)
        # The server's tasks do not inherit it. A dry run must store nothing, so no Events either.
        current_poster.set(None if review.dryrun else self._operator.poster)
        if self._operator.client is not None:
            self._operator.client.enter()
        headers = {} if headers is None else headers
        with open_span(self._describe, review, webhook, headers) or NOT_TRACED as span:
            return await self._judge(review, webhook, headers, sslpeer, span)

    async def _judge(
        self,
        review: Review,
        webhook: str | None,
        headers: Mapping[str, str],
        sslpeer: Mapping[str, Any] | None,
        span: Span | None,
    ) -> dict[str, Any]:
        named = _name_resource(review.group, review.version, review.plural, review.kind)
        resource = self._operator.cluster_view.find(named)
        cause = self._build_cause(review, resource, headers, sslpeer)
        chosen: Sequence[WebhookHandler] = ()
        entered: Iterable[str] | None = None
        errors: list[Any] = []
        denying: list[str] = []
        patch: str | None = None
        token = review_of_the_moment.set(review)
        try:
            try:
                chosen = select_webhooks(self._find_handlers(resource, webhook), cause)
                entered = self._gate.enter({h.id: count_abandoned(h.fn) for h in chosen})
                for handler in chosen:
                    if (error := await self._call(handler, cause)) is not None:
                        errors.append(error)
                        denying.append(handler.id)
                if cause.patch and not errors:
                    patch = encode_patch(self._build_patch_ops(review, cause))
            except ReviewError as exc:
                exc.request = review.build_reference()
                raise
            except (AdmissionError, PatchError) as exc:  # about the patch
                errors = [exc]
                denying = [each.id for each in chosen if each.reason is WebhookType.MUTATING]
            except asyncio.CancelledError:  # by its deadline, or the client has disconnected
                cause.logger.info("Cancelled: %s.", describe_review(review))
                raise
            except GeneratorExit:
                raise
            except BaseException as exc:  # in a filter or in patch.fns
                errors = [convert_exception(exc)]
                text = "A filter or a patch function of a webhook failed: %s. Request denied."
                cause.logger.exception(text, describe(errors[0]).rstrip("."))
            failure = rank_errors(errors)
            result = build_response(
                review,
                warnings=cause.warnings,
                audit_annotations=cause.audit_annotations,
                patch=patch,
                error=failure,
            )
            log_response(cause.logger, review, result["response"], denying)
            outcome = "allowed"
            if failure is not None:
                label = denying[0] if denying else self._counters.find_label(webhook)
                outcome = "denied" if is_denial(failure) else "error"
                self._counters.rejections[label, outcome] += 1
            if span is not None:
                span.conclude(outcome, failure if outcome == "error" else None)
            return result
        finally:
            if entered is not None:
                self._gate.leave(entered)
            review_of_the_moment.reset(token)

    def _describe(
        self, review: Review, webhook: str | None, headers: Mapping[str, str]
    ) -> Description:
        label, reference = self._counters.find_label(webhook), review.build_reference()
        attributes = {
            "webop.review.webhook": label,
            "webop.review.uid": review.uid,
            "webop.review.operation": review.operation,
            "webop.review.dry_run": review.dryrun,
            "webop.resource": reference["resource"],
            "k8s.namespace.name": review.namespace,
            "webop.object.name": reference.get("name"),
        }
        return Description(f"review {label}", attributes, kind="SERVER", headers=headers)

    async def _call(self, handler: WebhookHandler, cause: WebhookCause) -> BaseException | None:
        """Call a handler and return its error, if any.

        Changes of the patch are undone if the handler validates, or if its failure is ignored.
        Changes of the objects in place are undone: the next handler and the patch need them as they
        came.
        """
        patch, before = cause.patch, _UNPATCHED
        is_validating = handler.reason is WebhookType.VALIDATING
        if patch and (is_validating or handler.ignore_failures):
            before = Patch(clone(patch), fns=patch.fns)
        bodies = [body for body in (cause.body, cause.old) if body is not None]
        snapshot = Snapshot([body.raw for body in bodies])
        outcome = await attempt(handler, cause, None, self._options)
        if (restored := snapshot.restore()) is not snapshot.document:
            for body, raw in zip(bodies, restored, strict=True):
                body.replace(raw)
            hint = "change a copy" if is_validating else "put changes of the object into patch"
            text = f"{handler} changed the object in place, which has no effect: {hint}."
            self._warn_once(cause, text)
        if is_validating and (patch or before) and (patch != before or patch.fns != before.fns):
            text = f"{handler} only validates, so its patch is ignored."
            self._warn_once(cause, f"{text} To change objects, use @webop.on.mutate.")
            _restore(patch, before)
        if outcome.result is not None:
            kind = type(outcome.result).__name__
            hint = "raise webop.AdmissionError to deny the request"
            hint = hint if is_validating else "put changes of the object into patch"
            self._warn_once(cause, f"{handler} returned a {kind}, which is ignored: {hint}.")
        error = outcome.exception
        if error is None or not handler.ignore_failures:
            return error
        # The user and the log still get the reason.
        reason = describe_error(error)
        cause.warnings.append(f"{handler.id}: {reason}")
        text = "Ignored the failure of %s (ignore_failures=True): %s"
        cause.logger.info(text, handler, clean_line(reason))
        _restore(patch, before)
        return None

    def _find_handlers(self, resource: Resource, webhook: str | None) -> list[WebhookHandler]:
        """Return the handlers of a resource.

        Before and without the discovery, only plurals and kinds of resources are known. For
        handlers by ``shortcut=``, ``category=`` and the like, the API server is trusted to have
        called the right webhook.

        Raises:
            ReviewError: there is no such handler, or none for the resource (404); or the
                discovery is not done yet, or another replica has the handler (503).
        """
        asked = self._handlers if webhook is None else self._named.get(webhook, ())
        found = [h for h in asked if h.selector is not None and h.selector.check(resource)]
        if len(found) < len(asked) and not self._operator.cluster_view.has(resource):
            possible = [h for h in asked if h.selector is not None and h.selector.may_be(resource)]
            if len(possible) > len(found) and self._operator.cluster_view.is_awaited:
                text = (
                    f"The webhooks for {resource.name} are not known yet: the operator is starting."
                )
                raise ReviewError(text, status=503, retry_after=1)
            if webhook is not None:  # reviews do not contain short names, categories, etc.
                hidden = [h for h in possible if h.selector and h.selector.any_name is None]
                found = [h for h in possible if h in found or h in hidden]
        if not found:
            raise self._build_absence(asked, resource, webhook)
        return found

    def _build_absence(
        self, asked: Sequence[WebhookHandler], resource: Resource, webhook: str | None
    ) -> ReviewError:
        """Return the refusal of a review without handlers; another replica may have one."""
        if webhook is not None and self._hosting.is_elsewhere():
            text = f"Only other replicas serve webhook {webhook!r:.99} for {resource.name}"
            return ReviewError(f"{text}; try again.", status=503, retry_after=1)
        if webhook is not None and not asked:
            known = ", ".join(self.ids) or "none"
            return ReviewError(f"There is no webhook {webhook!r:.99}; known: {known}.", status=404)
        if webhook is None:
            text = f"There are no webhooks for {resource.name}."
        else:
            selectors = " and ".join(dict.fromkeys(str(handler.selector) for handler in asked))
            text = f"Webhook {asked[0].id!r} is for {selectors}, not for {resource.name}."
        if not self._operator.cluster_view.is_known:
            text += " Without a cluster, resources are known by their plurals and kinds only."
        return ReviewError(text, status=404)

    def _warn_once(self, cause: WebhookCause, text: str) -> None:
        if self._warned.is_new(text):
            cause.logger.warning("%s", text)

    def _build_patch_ops(self, review: Review, cause: WebhookCause) -> list[dict[str, Any]]:
        """Return the changes; none on deletion, where API servers would fail the request.

        Raises:
            AdmissionError: the patch changes the name, the namespace or the uid. On creation, API
                servers would accept another name and drop the uid silently; a handler may only
                choose the name that would be generated.
        """
        if review.object is None:
            text = f"The patch is ignored: a {cause.operation} cannot change the object."
            self._warn_once(cause, text)
            return []
        operations = cause.patch.as_json_patch(cause.body)
        for item in operations:
            is_naming = item["path"] == "/metadata/name" and item["op"] == "add"
            if item["path"] in _IDENTITY and not is_naming:
                field = item["path"].lstrip("/").replace("/", ".")
                change = f"set it to {item['value']!r:.99}" if "value" in item else "remove it"
                text = f"A mutating handler cannot change {field}: its patch would {change}."
                raise AdmissionError(text)
        return operations

    def _build_cause(
        self,
        review: Review,
        resource: Resource,
        headers: Mapping[str, str],
        sslpeer: Mapping[str, Any] | None,
    ) -> WebhookCause:
        old, new = review.old_object, review.object
        body = Body(review.body)
        uid = None if review.operation == "CREATE" else body.meta.uid
        return WebhookCause(
            logger=ReviewLogger(review, body=body, settings=self._operator.settings),
            recall=functools.partial(
                self._operator.memos.get_for_review,
                uid,
                limit=self._operator.settings.admission.memo_limit,
            ),
            indices=self._operator.indices,
            resource=resource,
            body=body,
            patch=Patch(body=body),
            old=None if old is None else body if new is None else Body(old),
            new=None if new is None else body,
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
    # The singular that API servers use if a CRD does not name one.
    return Resource(group, version, plural, kind=kind, singular=kind.lower())


def _restore(patch: Patch, before: Patch) -> None:
    patch.clear()
    patch.update(before)
    patch.fns.extend(before.fns)
