"""A kind of tests whose status has conditions, and the fields that handlers write."""

from __future__ import annotations

from typing import Any

import webop


class LampSpec(webop.Struct):
    watts: int = 5


class LampStatus(webop.Struct):
    phase: str | None = None
    watts: int | None = None
    conditions: webop.Conditions = webop.Conditions()


@webop.resource("lamps.webop.dev", "v1")
class Lamp(webop.Model):
    spec: LampSpec = LampSpec()
    status: LampStatus = LampStatus()


def build_lamp(watts: int = 5, **status: Any) -> Lamp:
    """Return a lamp in the hall; further arguments go to its status."""
    metadata = webop.Metadata(name="one", labels={"room": "hall"})
    return Lamp(metadata=metadata, spec=LampSpec(watts=watts), status=LampStatus(**status))
