"""What the log says of reviews: one line each, with who, what and why; nothing of the object.

Place in the flow: :mod:`webop.admission.serve` has it written when the answer is made. Refusals
are told at INFO, the rest at DEBUG, with the patch of a mutation: it is usual, and must cost
nothing.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

from webop.admission.response import clean_line
from webop.admission.review import Review
from webop.posting import LocalObjectLogger, Logger
from webop.settings import OperatorSettings

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
        """Add both to the record; extras of the call are kept."""
        request = self._review.build_reference()
        kwargs["extra"] = {"k8s_request": request, **(kwargs.get("extra") or {})}
        return super().process(msg, kwargs)


def log_answer(
    logger: Logger, review: Review, response: Mapping[str, Any], refusing: Iterable[str]
) -> None:
    """Log the answer of a review, and which handlers have refused it."""
    if not response["allowed"]:
        logger.info("%s", build_denial(review, response, refusing))
    elif logger.isEnabledFor(logging.DEBUG):
        logger.debug("Allowed: %s%s.", describe(review), _describe_extent(review, response))
        if "patch" in response and review.plural != "secrets":
            logger.debug("Patching with: %s", base64.b64decode(response["patch"]).decode())


def log_interruption(logger: Logger, review: Review) -> None:
    """Tell that nobody waits for the answer any more: the deadline is over, or the client gone."""
    logger.info("Cut off: %s.", describe(review))


def build_denial(review: Review, response: Mapping[str, Any], refusing: Iterable[str]) -> str:
    """Return the line about a refusal; it is one line whatever the handlers say."""
    status = response["status"]
    ids = ", ".join(dict.fromkeys(refusing)) or "the framework"
    extent = _describe_extent(review, response, f"code {status['code']}")
    message = clean_line(status["message"])
    if len(message) > _MESSAGE_LIMIT:
        message = f"{message[:_MESSAGE_LIMIT]}…"
    return f"Denied: {describe(review)}, refused by {ids}{extent}: {message}"


def describe(review: Review) -> str:
    """Return who wants to do what to which object."""
    reference = review.build_reference()
    place = "/".join(reference[key] for key in ("namespace", "name") if key in reference)
    what = f"{review.operation} of {reference['resource']}"
    return f"{what} {place} by {reference['user']}" if place else f"{what} by {reference['user']}"


def _describe_extent(review: Review, response: Mapping[str, Any], *parts: str) -> str:
    """Return what else there is to it, in brackets; nothing if there is nothing."""
    warnings = len(response.get("warnings", ()))
    more = (
        f"{warnings} warning{'s' if warnings > 1 else ''}" if warnings else "",
        "patched" if "patch" in response else "",
        "dry run" if review.dryrun else "",
    )
    shown = ", ".join(part for part in (*parts, *more) if part)
    return f" ({shown})" if shown else ""
