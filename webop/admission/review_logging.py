"""Log lines about reviews: who, what and why, without the content of the object.

:mod:`webop.admission.service` logs one line when the response is ready: denials at INFO; allowed
requests at DEBUG, with the patch of a mutation.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

from webop.admission.response import clean_line
from webop.admission.review import Review
from webop.events.loggers import LocalObjectLogger, Logger
from webop.settings.groups import OperatorSettings

_MESSAGE_LIMIT = 1024  # characters


class ReviewLogger(LocalObjectLogger):
    """The logger of a review: its messages carry the object and the request."""

    def __init__(
        self, review: Review, *, body: Mapping[str, Any], settings: OperatorSettings
    ) -> None:
        super().__init__(body=body, settings=settings)
        self._review = review

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the object and the request to the log record; keep the extras of the call."""
        request = self._review.build_reference()
        kwargs["extra"] = {"k8s_request": request, **(kwargs.get("extra") or {})}
        return super().process(msg, kwargs)


def log_response(
    logger: Logger, review: Review, response: Mapping[str, Any], denying: Iterable[str]
) -> None:
    """Log the response to a review, with the handlers that denied it."""
    if not response["allowed"]:
        logger.info("%s", build_denial(review, response, denying))
    elif logger.isEnabledFor(logging.DEBUG):
        logger.debug("Allowed: %s%s.", describe_review(review), _describe_extent(review, response))
        if "patch" in response and review.plural != "secrets":
            logger.debug("Patching with: %s", base64.b64decode(response["patch"]).decode())


def build_denial(review: Review, response: Mapping[str, Any], denying: Iterable[str]) -> str:
    """Return the log line about a denial; line breaks of the handlers' texts are removed."""
    status = response["status"]
    ids = ", ".join(dict.fromkeys(denying)) or "webop"
    extent = _describe_extent(review, response, str(status["code"]))
    message = clean_line(status["message"])
    if len(message) > _MESSAGE_LIMIT:
        message = f"{message[:_MESSAGE_LIMIT]}…"
    return f"Denied{extent}: {describe_review(review)}: {message} [{ids}]"


def describe_review(review: Review) -> str:
    """Return who requests what for which object."""
    reference = review.build_reference()
    place = "/".join(reference[key] for key in ("namespace", "name") if key in reference)
    what = f"{review.operation} of {reference['resource']}"
    return f"{what} {place} by {reference['user']}" if place else f"{what} by {reference['user']}"


def _describe_extent(review: Review, response: Mapping[str, Any], *parts: str) -> str:
    """Return further details in parentheses; empty if there are none."""
    warnings = len(response.get("warnings", ()))
    more = (
        f"{warnings} warning{'s' if warnings > 1 else ''}" if warnings else "",
        "patched" if "patch" in response else "",
        "dry run" if review.dryrun else "",
    )
    shown = ", ".join(part for part in (*parts, *more) if part)
    return f" ({shown})" if shown else ""
