"""Build the response to an admission review from the outcomes of its handlers.

Pure, and on the hot path. The format is that of the Kubernetes API, admission.k8s.io/v1.
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from webop.admission.review import Review
from webop.calls.error_policy import describe
from webop.errors import AdmissionError, PermanentError, TemporaryError, WebopError
from webop.objects.fields import is_lossy, unwrap_mapping
from webop.objects.names import is_label_value

logger = logging.getLogger(__name__)

_RANKING = (AdmissionError, PermanentError, TemporaryError)

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class PatchError(WebopError, TypeError):
    """The patch has a value that JSON cannot represent."""


def rank_errors(errors: Sequence[Exception]) -> Exception | None:
    """Return the error to report, by their ranking; None without errors."""
    ranked = [error for family in _RANKING for error in errors if isinstance(error, family)]
    return next(iter([*ranked, *errors]), None)


def build_response(
    review: Review,
    *,
    warnings: Sequence[str] = (),
    audit_annotations: Mapping[str, str] | None = None,
    patch: str | None = None,
    error: Exception | None = None,
) -> dict[str, Any]:
    """Build the AdmissionReview with the response, which can always be encoded as JSON.

    Args:
        review: the request.
        warnings: for the user who sent the request to the API server.
        audit_annotations: for the audit log. Invalid keys are dropped with a warning in the log.
        patch: the changes of the object (:func:`encode_patch`); dropped with an error.
        error: why the request is denied; None if it is allowed.
    """
    response: dict[str, Any] = {"uid": review.uid, "allowed": error is None}
    if warnings:
        response["warnings"] = [clean_line(warning) for warning in warnings]
    if audit_annotations and (usable := _build_audit_annotations(audit_annotations)):
        response["auditAnnotations"] = usable
    if error is not None:
        response["status"] = _build_status(review, error)
    elif patch is not None:
        response["patch"] = patch
        response["patchType"] = "JSONPatch"
    return {"apiVersion": review.api_version, "kind": "AdmissionReview", "response": response}


def _build_status(review: Review, error: Exception) -> dict[str, Any]:
    """Return why a request is denied (Kubernetes API, meta/v1 Status).

    Details are added only with causes: of an "Invalid" with details, kubectl shows only the causes.
    """
    status: dict[str, Any] = {"message": describe_error(error), "code": 500}
    if isinstance(error, AdmissionError):
        # Subclasses that do not call the __init__() of AdmissionError lack its attributes.
        code = getattr(error, "code", 500)
        if isinstance(code, int) and 400 <= code <= 599:
            status["code"] = code
        if reason := getattr(error, "reason", None):
            status["reason"] = _clean(reason)
        if causes := getattr(error, "causes", ()):
            metadata = review.body.get("metadata") or {}
            name = review.name or metadata.get("name") or metadata.get("generateName")
            names = {"name": name, "group": review.group, "kind": review.kind}
            status["details"] = {key: value for key, value in names.items() if value}
            status["details"]["causes"] = [
                {name: _clean(getattr(cause, name)) for name in ("reason", "message", "field")}
                for cause in causes
            ]
    return status


def describe_error(error: BaseException) -> str:
    """Return why a request is denied: with the class of an exception that is no denial."""
    return _clean(describe(error) if str(error) else repr(error))


def _build_audit_annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the valid ones; API servers put the webhook's name before the keys."""
    usable = {}
    for key, value in annotations.items():
        name = _clean(key)
        if name and is_label_value(name):
            usable[name] = _clean(value)
        else:
            logger.warning(
                "Dropped the audit annotation %.99r: a key must have at most 63 letters, digits, "
                "'-', '_', '.', and begin and end with a letter or digit.",
                key,
            )
    return usable


def encode_patch(patch_ops: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a JSON patch as the response has it: in base64; None without operations.

    Raises:
        PatchError: it has a value that JSON cannot represent.
    """
    if not patch_ops:
        return None
    what = "The patch has a value that JSON cannot represent"
    try:
        text = orjson.dumps(patch_ops, default=unwrap_mapping)
    except TypeError as exc:
        raise PatchError(f"{what}: {exc}.") from exc
    if is_lossy(text, patch_ops):
        raise PatchError(f"{what}: JSON has no NaN and no infinity.")
    return base64.b64encode(text).decode("ascii")


def clean_line(text: object) -> str:
    """Join the lines of a text: API servers drop warnings with control characters."""
    return " ".join(_CONTROL_CHARACTERS.sub(" ", _clean(text)).split())


def _clean(value: object) -> str:
    """Return a value of the user as text.

    Characters that UTF-8 cannot encode are replaced, such as surrogates from file names.
    """
    try:
        text = str(value)
    except Exception as exc:  # noqa: BLE001  the class of the value is the user's
        text = f"<{type(value).__name__}: {type(exc).__name__} in its __str__()>"
    return text.encode("utf-8", "replace").decode("utf-8")
