"""Serve conversion reviews: API servers ask for objects in another version of their kind.

Kubernetes: "Versions in CustomResourceDefinitions", "Webhook conversion"; the format is that of
apiextensions.k8s.io/v1. Flow: :meth:`webop.admission.service.AdmissionService.__call__` →
:meth:`ConversionService.__call__` → the user's function, for each object. All replicas serve them,
from their startup handlers on, with no request to the cluster.

Guarantees: no value of an object makes a review fail; one object would then break each list of its
kind. Without the function, an object is shown as far as both versions have the same fields, and
keeps the rest (:mod:`webop.models.kept_content`). A missing function or the deadline makes the
whole review fail, and the response names the object and the reason. It comes before the deadline,
except if an async function blocks the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from webop.aio.backoff import Once
from webop.aio.cancellation import contain, convert_exception, unwrap
from webop.calls.error_policy import describe
from webop.calls.execution import skip_framework
from webop.calls.threads import call_in_thread, count_abandoned
from webop.context.operator_context import OperatorContext
from webop.errors import MisfitError, ReviewError
from webop.events.loggers import current_poster, warn
from webop.handlers.model import ConversionHandler
from webop.models.kept_content import VersionChange
from webop.models.versions import FunctionCall, Versions, collect_versions, get_definition
from webop.objects.field_errors import build_causes, is_validation_error, summarize
from webop.objects.fields import Json
from webop.servers.http.review_head import compute_budget
from webop.servers.limits import Hosting
from webop.telemetry.tracing import NOT_TRACED, Description, open_span

logger = logging.getLogger(__name__)

KIND = "ConversionReview"
PATH = "convert"
"""The path of conversion reviews; a handler can have this id, as the kind of the review decides."""

_API_VERSION = "apiextensions.k8s.io/v1"
_MARGIN = 0.1  # seconds; for the response that names the object


class ConversionError(Exception):
    """An object cannot be converted; the text names the object and the reason."""


@dataclass(slots=True)
class _Request:
    """A request of an API server, checked, and what is being done for it.

    Attributes:
        uid: of the request; the response has the same.
        group: of all objects.
        version: that they must have.
        objects: in any versions.
        doing: the present object and the function, for messages.
        failure: why they, or one of them, cannot be converted.
    """

    uid: str
    group: str
    version: str
    objects: list[Json]
    doing: str = ""
    failure: BaseException | None = None


class ConversionService:
    """Converts objects between the versions of their kinds, by the functions of the registry.

    Attributes:
        kinds: the versions of the kinds that have converters.
    """

    def __init__(self, operator: OperatorContext, hosting: Hosting) -> None:
        self._operator = operator
        self._hosting = hosting
        self._logged = Once()
        self._functions: dict[str, Callable[..., Any]] = {}
        self.kinds: dict[str, Versions[ConversionHandler]] = {}
        self.update_handlers()

    def update_handlers(self) -> None:
        """Read the registry again: startup handlers may have registered more."""
        handlers = self._operator.registry.select_converters()
        self.kinds = collect_versions(handlers)
        self._functions = {handler.id: _name_argument(handler.fn) for handler in handlers}

    async def __call__(
        self, payload: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> Json:
        """Serve one ConversionReview; the HTTP headers are for traces.

        Raises:
            ReviewError: this is not such a review, too many are being served (429), or only other
                replicas know the kind (503).
        """
        request = _parse_request(payload)
        current_poster.set(None)  # of functions, as API servers convert objects again and again
        with open_span(_describe_span, request, headers) or NOT_TRACED as span:
            response = await self._serve(request)
            if span is not None:
                span.conclude("error" if request.failure else "success", request.failure)
            return response

    async def _serve(self, request: _Request) -> Json:
        # A moment earlier than the deadline of the endpoint, which does not know the objects. API
        # servers send no timeout= with conversions, so that deadline is the one of the setting.
        budget = compute_budget(self._hosting.limits.review_timeout)
        limit = max(budget - _MARGIN, budget / 2)
        try:
            async with asyncio.timeout(limit) as deadline:
                converted = []
                for body in request.objects:
                    request.doing = _describe(request, body)
                    converted.append(await self._convert(request, body))
                    await asyncio.sleep(0)  # long lists must not block other reviews
        except ConversionError as exc:
            return self._fail(request, str(exc), exc.__cause__ or exc)
        except TimeoutError as exc:
            if not deadline.expired():
                raise
            text = f"{request.doing} did not end within {limit:g} s, and was cancelled."
            self._log(request.group, text)
            return self._fail(request, text, exc)
        return _respond(request, {"status": "Success"}, converted)

    async def _convert(self, request: _Request, body: Json) -> Json:
        """Convert an object, in one or two steps."""
        metadata = body["metadata"]
        if not (metadata.get("name") or metadata.get("generateName")):
            # Not an object, but the fields of one that an earlier server-side apply owned.
            return {**body, "apiVersion": f"{request.group}/{request.version}"}
        path = self._find_path(request, body)
        counts = {each.id: count_abandoned(self._functions[each.id]) for each in path}
        entered = self._hosting.gate.enter(counts)
        try:
            doing = request.doing
            for handler in path:
                request.doing = doing
                body = await self._take_step(request, handler, body)
        finally:
            self._hosting.gate.leave(entered)
        return body

    async def _take_step(self, request: _Request, handler: ConversionHandler, body: Json) -> Json:
        """Convert an object by a function; without it, if it fails."""
        step = VersionChange.begin(handler.source, handler.target, body)
        if not step.needs_function:
            return step.end()
        try:
            with self._count(handler):
                converted = await self._call(request, handler, step.body)
            shown_converted = None
            if step.shown is not None:
                request.doing += ", as it was shown before it was changed"
                shown_converted = await self._call(request, handler, step.shown)
        except ConversionError as exc:
            request.failure = exc.__cause__ or exc.__context__
            self._report(handler, body, exc)
            return step.end()
        return step.end(converted, shown_converted)

    @contextlib.contextmanager
    def _count(self, handler: ConversionHandler) -> Iterator[None]:
        began, how, error = time.monotonic(), "cancelled", ""
        try:
            yield
            how = ""
        except ConversionError as exc:
            # The type only: messages can quote values of objects.
            how, error = "failure", type(exc.__cause__ or exc.__context__).__name__
            raise
        finally:
            labels, seconds = (handler.id, handler.family), time.monotonic() - began
            self._operator.counters.add(seconds, labels, how, error)

    def _find_path(self, request: _Request, body: Json) -> list[ConversionHandler]:
        """Return the functions to call.

        Raises:
            ConversionError: there are none.
            ReviewError: only other replicas may have them.
        """
        version = body["apiVersion"].rpartition("/")[2]
        for kind in self.kinds.values():
            definition = get_definition(kind.models[kind.hub])
            if (definition.group, definition.kind) == (request.group, body["kind"]):
                path = kind.find_path(version, request.version)
                if path is not None:
                    return path
        if self._hosting.is_elsewhere():
            text = f"{request.doing}: only other replicas have a function for it; try again."
            raise ReviewError(text, status=503, retry_after=1)
        raise ConversionError(
            f"{request.doing}: the operator has no function for it. Deploy the version of the "
            "operator that has one."
        )

    async def _call(self, request: _Request, handler: ConversionHandler, body: Json) -> Json:
        version = get_definition(handler.source).version
        doing, function = request.doing, self._functions[handler.id]
        try:
            call = FunctionCall.begin(handler.source, body)
        except MisfitError as exc:
            text = f"{doing}: the object does not fit the model of {version}: {exc}"
            raise ConversionError(text) from None
        request.doing = f"{doing}: {handler}"
        try:
            kwargs = {"model": call.model}
            if handler.is_async:
                result = unwrap(await asyncio.create_task(contain(function, kwargs)))
            else:
                result = await call_in_thread(function, kwargs, self._operator.settings.admission)
        except GeneratorExit:
            raise
        except BaseException as exc:  # noqa: BLE001  it can be the user's
            failure = convert_exception(exc)
            text = f"{request.doing} failed: {_describe_failure(failure)}"
            raise ConversionError(text) from failure
        try:
            converted = call.end(handler.target, result)
        except Exception as exc:  # noqa: BLE001  serializers can be the user's
            raise ConversionError(f"{request.doing}: {exc}.") from None
        request.doing = doing
        return converted

    def _report(self, handler: ConversionHandler, body: Json, exc: ConversionError) -> None:
        """Log that an object was not converted, and post an Event about it once a minute."""
        topic = handler.id, type(exc.__cause__ or exc.__context__)
        self._log(topic, str(exc), exc.__cause__)
        if self._logged.choose_level((handler.id, body["metadata"].get("uid"))) == logging.WARNING:
            current_poster.set(self._operator.poster)
            warn(body, reason="NotConverted", message=str(exc))
            current_poster.set(None)

    def _log(self, topic: Hashable, text: str, failure: BaseException | None = None) -> None:
        """Log a failure as an error once a minute: an object can be read very often."""
        is_first = self._logged.choose_level(topic) == logging.WARNING
        trace = failure and (type(failure), failure, skip_framework(failure))
        logger.log(logging.ERROR if is_first else logging.DEBUG, "%s", text, exc_info=trace)

    def _fail(self, request: _Request, text: str, failure: BaseException) -> Json:
        request.failure = failure
        counters = self._hosting.counters
        counters.rejections[counters.find_label(PATH), "error"] += 1
        return _respond(request, {"status": "Failure", "message": text}, None)


def _name_argument(fn: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a function whose argument has a name, as for other handlers."""

    def call(model: Any) -> Any:
        return fn(model)

    return call


def _respond(request: _Request, result: Json, converted: list[Json] | None) -> Json:
    response: Json = {"uid": request.uid, "result": result}
    if converted is not None:
        response["convertedObjects"] = converted
    return {"apiVersion": _API_VERSION, "kind": KIND, "response": response}


def _describe_span(request: _Request, headers: Mapping[str, str] | None) -> Description:
    attributes: dict[str, str | int | None] = {
        "webop.review.webhook": PATH,
        "webop.review.uid": request.uid,
        "webop.review.version": f"{request.group}/{request.version}",
        "webop.review.objects": len(request.objects),
    }
    return Description(f"review {PATH}", attributes, kind="SERVER", headers=headers)


def _describe(request: _Request, body: Json) -> str:
    metadata, version = body["metadata"], body["apiVersion"].rpartition("/")[2]
    name = "/".join(filter(None, (metadata.get("namespace"), metadata.get("name"))))
    what = f"{body['kind']} {name or 'without a name'}"
    return f"Cannot convert {what} from {version} to {request.version}"


def _describe_failure(failure: Exception) -> str:
    if is_validation_error(failure):
        errors = failure.errors()
        title = getattr(failure, "title", "the model")
        return f"{title} is not valid: {summarize(build_causes(errors), len(errors))}"
    return describe(failure) if str(failure) else repr(failure)


def _parse_request(payload: Mapping[str, Any]) -> _Request:
    """Check a ConversionReview with a request."""
    if payload.get("apiVersion") != _API_VERSION:
        found = payload.get("apiVersion")
        raise ReviewError(
            f"apiVersion must be {_API_VERSION}, not {found!r:.99}: set conversionReviewVersions "
            "to [v1] in the CustomResourceDefinition."
        )
    request = payload.get("request")
    if not isinstance(request, dict):
        raise ReviewError("request must be an object.")
    uid, wanted = request.get("uid"), request.get("desiredAPIVersion")
    for name, value in (("uid", uid), ("desiredAPIVersion", wanted)):
        if not (isinstance(value, str) and value):
            raise ReviewError(f"request.{name} must be a string that is not empty.")
    objects = request.get("objects")
    if not isinstance(objects, list):
        raise ReviewError("request.objects must be a list.")
    group, _, version = str(wanted).rpartition("/")
    for index, body in enumerate(objects):
        where = f"request.objects[{index}]"
        if not isinstance(body, dict):
            raise ReviewError(f"{where} must be an object.")
        for name in ("apiVersion", "kind"):
            if not isinstance(body.get(name), str):
                raise ReviewError(f"{where}.{name} must be a string.")
        metadata = body.setdefault("metadata", {})  # none: see _convert
        if not (isinstance(metadata, dict) and isinstance(metadata.get("annotations") or {}, dict)):
            raise ReviewError(f"{where}.metadata must be an object, and so must its annotations.")
        if body["apiVersion"].rpartition("/")[0] != group:
            raise ReviewError(f"{where}.apiVersion must be of the group {group!r:.99}.")
    return _Request(str(uid), group, version, objects)
