"""The answers to admission reviews: from the verdicts of handlers to JSON that API servers take.

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
from webop.errors import AdmissionError, PermanentError, TemporaryError
from webop.objects.fields import is_lossy, unwrap_mapping

logger = logging.getLogger(__name__)

_RANKING = (AdmissionError, PermanentError, TemporaryError)

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# What API servers take as the part after their prefix (k8s.io/apiserver, pkg/audit).
_AUDIT_KEY = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def rank_errors(errors: Sequence[Exception]) -> Exception | None:
    """Return the one error to be told of, the most telling first (ADM-06), if there is any."""
    for family in _RANKING:
        for error in errors:
            if isinstance(error, family):
                return error
    return errors[0] if errors else None


def build_response(
    review: Review,
    *,
    warnings: Sequence[str] = (),
    audit_annotations: Mapping[str, str] | None = None,
    patch_ops: Sequence[Mapping[str, Any]] = (),
    error: Exception | None = None,
) -> dict[str, Any]:
    """Return the AdmissionReview with the response (ADM-03 to 05, 07, 09, 29).

    It can be put into JSON whatever the handlers have left: a patch that cannot be, is a refusal.

    Args:
        review: the request.
        warnings: what the one who has sent the request to the API server is to be told.
        audit_annotations: what is to be in the audit log; those that API servers do not take are
            left out, with a warning in the log.
        patch_ops: the changes of the object, as a JSON patch; a refusal carries none (D-63).
        error: why it is refused; None if it is allowed.
    """
    patch = None
    if patch_ops and error is None:
        try:
            patch = _encode_patch(patch_ops)
        except TypeError as exc:
            error = TypeError(f"The patch cannot be put into JSON: {exc}.")
    response: dict[str, Any] = {"uid": review.uid, "allowed": error is None}
    if warnings:
        response["warnings"] = [clean_line(str(warning)) for warning in warnings]
    if audit_annotations and (usable := _build_audit_annotations(audit_annotations)):
        response["auditAnnotations"] = usable
    if error is not None:
        response["status"] = _build_status(review, error)
    elif patch is not None:
        response["patch"] = patch
        response["patchType"] = "JSONPatch"
    return {"apiVersion": review.api_version, "kind": "AdmissionReview", "response": response}


def _build_status(review: Review, error: Exception) -> dict[str, Any]:
    """Return why a request is refused (Kubernetes API, meta/v1 Status).

    The details are there for the causes only: of an "Invalid" with details, kubectl shows nothing
    but the causes.
    """
    status: dict[str, Any] = {
        "message": _clean(str(error) or repr(error)),
        "code": _get_code(error),
    }
    if isinstance(error, AdmissionError):
        if error.reason:
            status["reason"] = _clean(str(error.reason))
        if error.causes:
            names = {"name": _get_name(review), "group": review.group, "kind": review.kind}
            status["details"] = {key: value for key, value in names.items() if value}
            status["details"]["causes"] = [
                {
                    "reason": _clean(str(cause.reason)),
                    "message": _clean(str(cause.message)),
                    "field": _clean(str(cause.field)),
                }
                for cause in error.causes
            ]
    return status


def _get_name(review: Review) -> str | None:
    if review.name:
        return review.name
    metadata = review.body.get("metadata") or {}
    return metadata.get("name") or metadata.get("generateName")


def _build_audit_annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return those that API servers take; these put the webhook's name before the keys."""
    usable = {}
    for key, value in annotations.items():
        if _AUDIT_KEY.fullmatch(str(key)):
            usable[str(key)] = _clean(str(value))
        else:
            logger.warning(
                "The audit annotation %.99r is left out: keys have up to 63 letters, digits, and "
                "'-', '_', '.' inside.",
                key,
            )
    return usable


def _encode_patch(patch_ops: Sequence[Mapping[str, Any]]) -> str:
    text = orjson.dumps(patch_ops, default=unwrap_mapping)
    if is_lossy(text, patch_ops):
        raise TypeError("there is no NaN and no infinity in JSON")
    return base64.b64encode(text).decode("ascii")


def _get_code(error: Exception) -> int:
    """Return the HTTP status for an error; API servers break on what is not one."""
    code: object = error.code if isinstance(error, AdmissionError) else 500
    return code if isinstance(code, int) and 400 <= code <= 599 else 500


def clean_line(text: str) -> str:
    """Put a text into one line: API servers drop warnings with any control characters."""
    return _clean(" ".join(_CONTROL_CHARACTERS.sub(" ", text).split()))


def _clean(text: str) -> str:
    """Replace what UTF-8 cannot hold, such as halves of surrogate pairs from file names."""
    return text.encode("utf-8", "replace").decode("utf-8")
