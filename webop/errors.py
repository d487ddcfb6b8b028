"""The exceptions of webop: one tree, mapped once at each edge.

::

    Exception
    ├── PermanentError             a handler gives up: no more retries in this cycle
    │   ├── AdmissionError         ... and tells the API server why: code, reason, fields
    │   ├── HandlerTimeoutError    the handler's ``timeout=`` has run out
    │   └── HandlerRetriesError    the handler's ``retries=`` have run out
    ├── TemporaryError             a handler asks to be called again after a delay
    └── WebopError                 everything that is not raised by handlers
        ├── ConfigurationError     the user's mistake: names the thing and the remedy
        ├── ActivityError          a handler of the operator's own life has failed for good
        ├── LoginError             no credentials for the API server, or none that work
        ├── ClusterError           a local control plane cannot be had, started or reached
        │   └── SourceError        one source of its binaries cannot give them
        ├── ReviewError            a request that is not a usable AdmissionReview (4xx)
        └── APIError               a request to the API server failed
            ├── APIConnectionError     no answer: network, TLS, time-out, cut connection
            ├── APITimeoutError        an object is not as it should be in time
            └── APIStatusError         an answer with a status of 400 or above
                ├── APIUnauthorizedError     401
                ├── APIForbiddenError        403
                ├── APINotFoundError         404
                ├── APIConflictError         409
                ├── APIGoneError             410
                ├── APIUnprocessableError    422
                ├── APITooManyRequestsError  429
                └── APIServerError           5xx

Handlers raise the first two families (chapter "Error handling" of the manual).
The command line turns :class:`WebopError` into a message and an exit code, the admission
endpoint turns :class:`ReviewError` into an HTTP status.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from webop.field_errors import AdmissionCause, build_causes, parse_causes, summarize


class PermanentError(Exception):
    """A handler has failed for good in this handling cycle; it is not retried."""


class TemporaryError(Exception):
    """A handler has failed for now; it is called again after ``delay`` seconds.

    Args:
        msg: what is logged, kept in the progress record, and posted as an event.
        delay: seconds until the next attempt; None or 0 means at once.
    """

    def __init__(self, msg: str | None = None, delay: float | None = 60) -> None:
        super().__init__(*(() if msg is None else (msg,)))
        self.delay = delay


class AdmissionError(PermanentError):
    """An admission handler refuses the request.

    Args:
        message: the reason, shown to the one who sent the request (by kubectl, for example).
        code: the HTTP status in the answer to the API server.
        reason: the same for programs, one word (Kubernetes API, meta/v1 StatusReason): "Invalid",
            "Forbidden", "Conflict" and so on; None for none.
        causes: what is wrong in which fields: :class:`webop.AdmissionCause`, or mappings with
            ``field``, ``message`` and maybe ``reason``.

    Raises:
        TypeError: the causes are something else.
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
        """Return a refusal (422, "Invalid") with one cause for each error of a validation.

        Args:
            exc: a ``ValidationError`` of pydantic, or anything whose ``errors()`` are alike.
            path: where in the object that is, what was validated: "spec" if it was the spec.
        """
        errors = exc.errors()
        causes = build_causes(errors, path)
        message = summarize(causes, len(errors))
        return cls(message, 422, reason="Invalid", causes=causes)


class HandlerTimeoutError(PermanentError):
    """A handler has used up its ``timeout=`` over all of its attempts."""


class HandlerRetriesError(PermanentError):
    """A handler has used up its ``retries=``."""


class WebopError(Exception):
    """The root of all errors that webop raises on its own behalf.

    Args:
        message: what has happened, for the log.
        kind: the same in a sentence that quotes nothing: for probes, which anybody may read.
    """

    def __init__(self, message: str = "", *, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind or f"{type(self).__name__}."


class ConfigurationError(WebopError):
    """The user's mistake: an option, a module, a setting. The message says what to do."""


class ActivityError(WebopError):
    """A startup, login, cleanup or probe handler has failed for good."""


class LoginError(WebopError):
    """There are no credentials for the API server, or all of them are refused."""


class ClusterError(WebopError):
    """A local control plane cannot be had, started or reached; the message names the remedy."""


class SourceError(ClusterError):
    """One source of the binaries of the control plane cannot give them; the next one is tried."""


class ReviewError(WebopError):
    """A request that cannot be served as an AdmissionReview.

    Args:
        message: the reason; names the offending field where there is one.
        status: the HTTP status of the answer: 4xx, or 5xx if the request is not to blame.
        retry_after: seconds after which it may be served; API servers do try again.

    Attributes:
        request: what it is about, for the log; None if it is not known to be a review.
    """

    def __init__(self, message: str, *, status: int = 400, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.request: Mapping[str, Any] | None = None


class APIError(WebopError):
    """A request to the API server failed."""


class APIConnectionError(APIError):
    """There was no usable answer: a network or TLS error, a time-out, a cut connection."""


class APITimeoutError(APIError, TimeoutError):
    """What was waited for has not come true in time; the message says how it was at last."""


class APIStatusError(APIError):
    """The API server answered with a status of 400 or above.

    Args:
        message: the text of the answer, with the verb and the path of the request.
        status: the HTTP status code.
        reason: the machine-readable reason of the ``Status`` object, such as "AlreadyExists".
        details: the ``details`` of the ``Status`` object (Kubernetes API, meta/v1 Status).
        retry_after: seconds after which the server asks to try again, if it does.
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
        """Return the class that stands for an HTTP status."""
        return _CLASSES.get(status, APIServerError if status >= 500 else APIStatusError)


class APIUnauthorizedError(APIStatusError):
    """401: the credentials are not accepted (any more)."""


class APIForbiddenError(APIStatusError):
    """403: the credentials are known, but RBAC does not permit this."""


class APINotFoundError(APIStatusError):
    """404: there is no such object, or no such resource."""


class APIConflictError(APIStatusError):
    """409: the object exists already, or has changed meanwhile."""


class APIGoneError(APIStatusError):
    """410: the resource version is too old; list again."""


class APIUnprocessableError(APIStatusError):
    """422: the object is not valid, or the ``test`` of a JSON patch did not hold."""


class APITooManyRequestsError(APIStatusError):
    """429: the API server asks for patience."""


class APIServerError(APIStatusError):
    """5xx: the API server has a problem."""


_CLASSES: dict[int, type[APIStatusError]] = {
    401: APIUnauthorizedError,
    403: APIForbiddenError,
    404: APINotFoundError,
    409: APIConflictError,
    410: APIGoneError,
    422: APIUnprocessableError,
    429: APITooManyRequestsError,
}
