"""Failed requests: their exceptions (what was attempted, why it failed, what to do) and pauses.

Pure: bytes in, exceptions of :mod:`webop.errors` out.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from webop.client.http.transport import NotSentError
from webop.errors import APIConnectionError, APIError, APIServerError, APIStatusError
from webop.logs.sanitizing import escape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from webop.aio.backoff import Backoff

_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_COLLECTION_VERBS = {"GET": "list", "DELETE": "deletecollection"}
_TEXT_LIMIT = 500
_STATUS_LIMIT = 10_000  # characters of a message; those of many invalid fields are long
_RETRY_AFTER_LIMIT = 60.0  # seconds; a very long Retry-After must not stop an object

# Texts of a 500 that is a mistake in the request: it would fail again. The status is what an API
# server should have sent. The first one: server-side apply, a field that the schema does not have.
_MISTAKES = {
    "failed to create typed": 422,
    "request is too large": 413,
    "message larger than max": 413,
    "ResourceExhausted": 413,
}

# Texts in a 422 about a field that excludes another one, such as the strategy of a Deployment.
_EXCLUSIVE = ("may not be specified when", "may not specify more than", "only allowed for")

# Texts in a 403 that is not about permissions.
_POLICIES = (
    *("denied the request", "denied request", "exceeded quota", "being terminated"),
    *("violates PodSecurity", "only dynamically provisioned pvc"),
)

# The words of RBAC; those of admission plugins differ, and can also say that they are not ready.
_PERMISSION = re.compile(r"(?is)is forbidden: (user \"|cannot )|^(?!.*is forbidden: )")

# The verb in a 403: an apply that creates an object needs "create", too.
_VERB = re.compile(r"cannot (\w+) resource ")


class Attempt(NamedTuple):
    """A request in the words of RBAC (Kubernetes: "Determine the request verb").

    ``resource`` is a plural name with the group and the subresource (``pods/status``,
    ``kopfexamples.kopf.dev``), or the path itself if it is not of a resource.
    """

    verb: str
    resource: str
    namespace: str | None = None
    name: str | None = None
    is_resource: bool = True

    def __str__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        where = f" in namespace {self.namespace!r}" if self.namespace else ""
        return f"{self.verb} {self.resource}{name}{where}"


def parse_attempt(method: str, path: str, params: Mapping[str, str] | None = None) -> Attempt:
    """Parse the verb, the resource, the namespace and the name from the method and the path.

    >>> str(parse_attempt("GET", "/apis/apps/v1/namespaces/ns/deployments", {"watch": "true"}))
    "watch deployments.apps in namespace 'ns'"
    """
    group, parts = _split_path(path)
    if not parts:
        return Attempt(_VERBS.get(method, method.lower()), path, is_resource=False)
    namespace = None
    # The namespaces themselves are resources too: /api/v1/namespaces/ns, .../ns/status.
    if parts[0] == "namespaces" and len(parts) > 2 and parts[2] not in {"status", "finalize"}:
        namespace, parts = parts[1], parts[2:]
    plural, name, subresource = parts[0], *(*parts[1:], None, None)[:2]
    resource = plural + (f".{group}" if group else "") + (f"/{subresource}" if subresource else "")
    verb = _VERBS.get(method, method.lower())
    if name is None:
        verb = _COLLECTION_VERBS.get(method, verb)
    if verb in {"list", "get"} and params and params.get("watch") in {"true", "1"}:
        verb = "watch"
    return Attempt(verb, resource, namespace, name)


def is_policy(text: str) -> bool:
    """Return whether the text of a 403 is about a policy, a webhook or a quota, not permissions."""
    return any(words in text for words in _POLICIES)


def build_connection_error(attempt: Attempt, exc: BaseException) -> APIConnectionError:
    """Build the exception for a request without a usable response."""
    reason = str(exc) or ("no response in time" if isinstance(exc, TimeoutError) else repr(exc))
    if isinstance(exc, orjson.JSONDecodeError):
        advice = "Check that the server is an API server, and that no proxy compresses responses"
        reason = f"the response is not JSON. {advice}: {exc}"
    return APIConnectionError(f"Cannot {attempt}: {reason}")


def may_be_executed(exc: APIError) -> bool:
    """Return whether the API server can have executed a request that failed."""
    if isinstance(exc, APIServerError):  # 503 with Retry-After: too busy, or not ready
        return exc.status != 503 or exc.retry_after is None
    return isinstance(exc, APIConnectionError) and not isinstance(exc.__cause__, NotSentError)


def build_status_error(
    attempt: Attempt, status: int, retry_after: str, content: bytes
) -> APIStatusError:
    """Build the exception for a response with a status of 300 or above.

    The response is a ``Status`` object (Kubernetes API, meta/v1), or any text, maybe of a proxy.
    ``Retry-After`` is that of its headers.
    """
    body = _parse_status(content)
    text = body.get("message") or content[:_TEXT_LIMIT].decode("utf-8", "replace").strip()
    error = _build_error(attempt, status, body, str(text)[:_STATUS_LIMIT])
    error.retry_after = _parse_seconds(retry_after, error.retry_after)
    return error


def build_event_error(attempt: Attempt, body: object) -> APIStatusError:
    """Build the exception for a watch event of type ERROR; its object is a ``Status``."""
    status = body if isinstance(body, dict) else {}
    code = status.get("code")
    if status.get("reason") in {"Expired", "Gone"}:
        code = 410
    text = str(status.get("message") or body)[:_TEXT_LIMIT]
    return _build_error(attempt, code if isinstance(code, int) else 500, status, text)


def choose_pause(
    backoff: Backoff,
    exc: Exception,
    *,
    limit: float = _RETRY_AFTER_LIMIT,
    is_enforced: bool = False,
) -> float | None:
    """Return the pause after a failed request: the usual one, or a longer ``Retry-After``.

    Args:
        backoff: the usual pauses.
        exc: the failure.
        limit: the longest pause to which ``Retry-After`` can extend the usual one, in seconds.
        is_enforced: whether the pause is exactly ``Retry-After``, also beyond the limit
            (``settings.networking.enforce_retry_after``). 0 is ignored, because objects are retried
            forever, and never without a pause.

    Returns:
        Seconds; None if no usual pauses are left, even with ``Retry-After``.
    """
    wish = (exc.retry_after or None) if isinstance(exc, APIStatusError) else None
    pause = backoff.next(None if wish is None else min(wish, limit))
    return wish if is_enforced and None not in (wish, pause) else pause


def _build_error(
    attempt: Attempt, status: int, body: Mapping[str, Any], text: str
) -> APIStatusError:
    details = body.get("details")
    details = details if isinstance(details, dict) else {}
    metadata = body.get("metadata")
    if status == 410 and isinstance(metadata, dict) and (token := metadata.get("continue")):
        details = {**details, "continue": token}  # of the rest of the list, as of a later moment
    text = escape(text, keep="\n\t")
    message = f"Cannot {attempt}: HTTP {status}" + (f": {text}" if text else "")
    if status == 403 and not is_policy(text) and _PERMISSION.search(text):
        message = f"{message.rstrip('.')}. {_advise(attempt, text)}"
    if "FieldManagerConflict" in str(details.get("causes")):
        message = (
            f"{message.rstrip('.')}. Leave these fields out, or take them over with force=True. "
            "If the manager is this operator, create() or patch() has set them: use only apply()."
        )
    if attempt.verb == "patch" and status == 422 and any(words in text for words in _EXCLUSIVE):
        message = (
            f"{message.rstrip('.')}. If you do not set both, the other one is a default from "
            "before, which an apply cannot remove: set it to None by client.patch(), together with "
            "the new value, or delete the object."
        )
    if attempt.resource == "pods/log" and (why := _explain_log(attempt, status, details, text)):
        message = f"{message.rstrip('.')}. {why}"
    if status == 500:
        status = next((code for words, code in _MISTAKES.items() if words in text), status)
    return APIStatusError.of(status)(
        message,
        status=status,
        reason=str(body.get("reason") or ""),
        details=details,
        retry_after=_parse_seconds(details.get("retryAfterSeconds"), None),
    )


def _split_path(path: str) -> tuple[str, list[str]]:
    """Return the API group and the rest of the path of a resource; empty for other paths."""
    root, *parts = path.partition("?")[0].strip("/").split("/")
    if root == "api" and len(parts) > 1:
        return "", parts[1:]
    if root == "apis" and len(parts) > 2:
        return parts[0], parts[2:]
    return "", []


def _advise(attempt: Attempt, text: str) -> str:
    if "cannot find RESTMapping" in text:
        return (
            "The API server does not know the owner's kind for its check of 'blockOwnerDeletion' "
            "yet; it looks for new kinds every 30 s. Try again, or use "
            "append_owner_reference(..., block_owner_deletion=False)."
        )
    if "blockOwnerDeletion" in text:
        return (
            "Grant the verb 'update' on the subresource 'finalizers' of the owner's kind to the "
            "operator's account, or use append_owner_reference(..., block_owner_deletion=False)."
        )
    if not attempt.is_resource:
        return (
            f"Grant the verb {attempt.verb!r} on the URL {attempt.resource!r} to the operator's "
            "account, with a ClusterRole and a binding."
        )
    resource, _, subresource = attempt.resource.partition("/")
    plural, _, group = resource.partition(".")
    target = f"{plural}/{subresource}" if subresource else plural
    verb = found[1] if (found := _VERB.search(text)) else attempt.verb
    role = f"Role in {attempt.namespace!r} or a ClusterRole" if attempt.namespace else "ClusterRole"
    return (
        f"Grant the verb {verb!r} on {target!r} of the API group {group!r} to the "
        f"operator's account, with a {role} and a binding."
    )


def _explain_log(attempt: Attempt, status: int, details: Mapping[str, Any], text: str) -> str:
    """Return who has refused to give a log, if it was not the API server itself."""
    if status == 404 and details.get("name") not in (None, attempt.name):
        return "This is the node of the pod."
    if status >= 500 and "/containerLogs/" in text:
        return "The API server cannot reach the kubelet on the node of the pod."
    return ""


def _parse_status(content: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        return {}
    return body if isinstance(body, dict) and body.get("kind") == "Status" else {}


def _parse_seconds(value: object, default: float | None) -> float | None:
    """Parse a number of seconds. Kubernetes does not send the dates of RFC 9110."""
    try:
        seconds = float(str(value)) if value else math.nan
    except ValueError:
        return default
    return max(0.0, seconds) if math.isfinite(seconds) else default
