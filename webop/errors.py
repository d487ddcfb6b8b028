"""The exceptions of webop.

::

    Exception
    ├── PermanentError             a handler gives up: no more retries in this cycle
    │   ├── AdmissionError         ... and denies an admission: code, reason, fields
    │   ├── HandlerTimeoutError    the handler has exceeded its ``timeout=``
    │   └── HandlerRetriesError    the handler has used all its ``retries=``
    ├── TemporaryError             a handler asks to be called again after a delay
    │   └── MisfitError            the object does not fit the model of the handler
    └── WebopError                 webop's own errors
        ├── ConfigurationError     a wrong option, module or setting; says what to do
        ├── ChildConflictError     a child of a reconciler belongs to another object
        ├── ActivityError          a startup, login, cleanup or probe handler failed for good
        ├── ClusterError           a local control plane is missing, unstartable or unreachable
        │   └── SourceError        one source of its binaries does not have them
        ├── ReviewError            a request that webop cannot serve as an AdmissionReview
        └── APIError               a request to the API server failed
            ├── LoginError             no credentials for the API server, or none that work
            ├── APIConnectionError     no response: network, TLS, timeout, closed connection
            ├── APITimeoutError        an object did not reach the expected state in time
            └── APIStatusError         a response with a status of 400 or above
                ├── APIUnauthorizedError     401
                ├── APIForbiddenError        403
                ├── APINotFoundError         404
                ├── APIConflictError         409
                ├── APIGoneError             410
                ├── APIUnprocessableError    422
                ├── APITooManyRequestsError  429
                └── APIServerError           5xx

Handlers raise the first two families (chapter "Error handling" of the manual). The command line
turns a :class:`WebopError` into a message and an exit code, the admission endpoint turns a
:class:`ReviewError` into an HTTP status.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from webop.objects.field_errors import AdmissionCause, build_causes, parse_causes, summarize

__all__ = [
    "APIConflictError",
    "APIConnectionError",
    "APIError",
    "APIForbiddenError",
    "APINotFoundError",
    "APIStatusError",
    "APITimeoutError",
    "APIUnprocessableError",
    "ActivityError",
    "ChildConflictError",
    "ConfigurationError",
    "MisfitError",
    "ReviewError",
    "WebopError",
]
"""Pages name these here, and those that Kopf has, too, as ``webop.TemporaryError``."""


class PermanentError(Exception):
    """A handler has failed for good in this handling cycle; webop does not retry it."""


class TemporaryError(Exception):
    """Raise it if a handler cannot finish yet: webop calls it again after ``delay`` seconds.

    ::

        raise webop.TemporaryError("The volume is still in use.", delay=30)

    Args:
        msg: the message for the log, the progress record and the Event.
        delay: seconds until the next attempt; None or 0 means at once.
    """

    def __init__(self, msg: str | None = None, delay: float | None = 60) -> None:
        super().__init__(*(() if msg is None else (msg,)))
        self.delay = delay


class AdmissionError(PermanentError):
    """Raise it in an admission handler to deny the request.

    ::

        raise webop.AdmissionError("spec.size must be set.", code=422)

    Args:
        message: the message for the user; kubectl shows it.
        code: the HTTP status in the response to the API server.
        reason: one word for programs (Kubernetes API, meta/v1 StatusReason): "Invalid",
            "Forbidden", "Conflict" and so on; None for none.
        causes: the invalid fields: :class:`webop.AdmissionCause`, or mappings with ``field``,
            ``message`` and optionally ``reason``.

    Raises:
        TypeError: the causes are of another type.
    """

    def __init__(
        self,
        message: str | None = "",
        code: int | None = 500,
        *,
        reason: str | None = None,
        causes: Iterable[AdmissionCause | Mapping[str, str]] = (),
    ) -> None:
        super().__init__(*((message,) if message else ()))
        self.code = 500 if code is None else code
        self.reason = reason
        self.causes = tuple(parse_causes(causes))

    @classmethod
    def from_validation(cls, exc: Any, path: str = "") -> Self:
        """Return a denial (422, "Invalid") with one cause for each error of a validation.

        Args:
            exc: a ``ValidationError`` of pydantic, or an object with the same ``errors()``.
            path: the path of the validated part in the object, such as "spec".
        """
        errors = exc.errors()
        causes = build_causes(errors, path)
        message = summarize(causes, len(errors))
        return cls(message, 422, reason="Invalid", causes=causes)


class HandlerTimeoutError(PermanentError):
    """A handler has exceeded its ``timeout=`` over all its attempts."""


class HandlerRetriesError(PermanentError):
    """A handler has used all its ``retries=``."""


class MisfitError(TemporaryError):
    """An object does not fit its model. The handler is called when the object fits again.

    Attributes:
        causes: the fields that do not fit, and why.
    """

    def __init__(self, message: str, causes: Iterable[AdmissionCause] = ()) -> None:
        super().__init__(message)
        self.causes = tuple(causes)


class WebopError(Exception):
    """The base class of webop's own errors.

    Args:
        message: what happened, for the log.
        kind: the same without quoted data: for responses to probes, which anybody can read.
    """

    def __init__(self, message: str = "", *, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind or f"{type(self).__name__}."


class ConfigurationError(WebopError):
    """An option, a module or a setting is wrong. The message says what to do."""


class ChildConflictError(WebopError):
    """A reconciler applies a child that belongs to another object or reconciler."""


class ActivityError(WebopError):
    """A startup, login, cleanup or probe handler has failed for good."""


class ClusterError(WebopError):
    """A local control plane is missing, or cannot be started or reached; says what to do."""


class SourceError(ClusterError):
    """A source does not have the binaries of the control plane; webop tries the next source."""


class ReviewError(WebopError):
    """A request that cannot be served as an AdmissionReview.

    Args:
        message: the reason; names the invalid field if there is one.
        status: the HTTP status of the response: 4xx, or 5xx if the request is correct.
        retry_after: seconds after which the API server should try again.

    Attributes:
        request: the ``request`` of the review, for the log; None if it could not be read.
    """

    def __init__(self, message: str, *, status: int = 400, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.request: Mapping[str, Any] | None = None


class APIError(WebopError):
    """A request to the API server failed."""


class LoginError(APIError):
    """There are no credentials for the API server, or the API server accepts none of them."""


class APIConnectionError(APIError):
    """There was no usable response: a network or TLS error, a timeout, a closed connection."""


class APITimeoutError(APIError, TimeoutError):
    """An object did not reach the expected state in time; the message says its last state."""


class APIStatusError(APIError):
    """The API server responded with a status of 400 or above.

    Args:
        message: the text of the response, with the verb and the path of the request.
        status: the HTTP status code; 422 or 413 for a 500 that is a mistake in the request.
        reason: the machine-readable reason of the ``Status`` object, such as "AlreadyExists".
        details: the ``details`` of the ``Status`` object (Kubernetes API, meta/v1 Status).
        retry_after: seconds after which the server asks for a retry; None if it does not.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        reason: str = "",
        details: dict[str, object] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.details = details or {}
        self.retry_after = retry_after

    @classmethod
    def of(cls, status: int) -> type[APIStatusError]:
        """Return the class for an HTTP status."""
        return _CLASSES.get(status, APIServerError if status >= 500 else APIStatusError)


class APIUnauthorizedError(APIStatusError):
    """401: the API server does not accept the credentials."""


class APIForbiddenError(APIStatusError):
    """403: the credentials are valid, but RBAC does not permit the request."""


class APINotFoundError(APIStatusError):
    """404: there is no such object, or no such resource."""


class APIConflictError(APIStatusError):
    """409: the object already exists, or has changed."""


class APIGoneError(APIStatusError):
    """410: the resource version is too old; list again."""


class APIUnprocessableError(APIStatusError):
    """422: the object is invalid, or a ``test`` of a JSON patch failed."""


class APITooManyRequestsError(APIStatusError):
    """429: the API server is overloaded."""


class APIServerError(APIStatusError):
    """5xx: the API server has a problem."""


TRANSIENT_ERRORS = (APIConnectionError, APIServerError, APITooManyRequestsError)
"""The same request may succeed later."""

_CLASSES: dict[int, type[APIStatusError]] = {
    401: APIUnauthorizedError,
    403: APIForbiddenError,
    404: APINotFoundError,
    409: APIConflictError,
    410: APIGoneError,
    422: APIUnprocessableError,
    429: APITooManyRequestsError,
}
