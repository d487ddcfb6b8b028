"""Reading and writing the content of a Lease. Pure: no I/O, no clock.

The record is that of client-go (Kubernetes API, coordination.k8s.io/v1, Lease), so that programs in
Go and in Python can share a Lease. Its times are only for people, because the clocks of nodes
differ. Each process decides by its own clock, from when it has last seen the record change.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from webop.client.watch_events import parse_number, parse_version
from webop.errors import ConfigurationError
from webop.objects.names import SUBDOMAIN
from webop.settings.groups import LeadershipSettings

_MAX_NAME = 253  # RFC 1123

_MARGIN_SHARE = 0.05  # of the duration: for clocks that run at different speeds
_MIN_MARGIN = 0.25  # seconds; for ending the process if necessary
_LAST_MOMENTS = 1.0  # seconds; for the cleanup of cancelled handlers


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """The times of a Lease, in seconds after the last renewal was sent.

    Attributes:
        duration: the duration in the Lease, in whole seconds.
        deadline: when no new handlers are called.
        cancellation: when running handlers are cancelled.
        end: when no step runs any more; shortly before other replicas can take over.
        period: the pause between attempts.
        request_timeout: the timeout of one attempt.
    """

    duration: int
    deadline: float
    cancellation: float
    end: float
    period: float
    request_timeout: float


def build_times(options: LeadershipSettings) -> LeaseTimes:
    """Return the times that follow from the settings; refuse contradictions and invalid names."""
    name = options.lease_name or ""
    if len(name) > _MAX_NAME or not SUBDOMAIN.fullmatch(name):
        raise ConfigurationError(
            "settings.leadership.lease_name (or --lease) must have 1 to 253 characters: lower-case "
            f"letters, digits, dashes and dots, got {name!r}."
        )
    duration = math.ceil(options.lease_duration)
    end = duration - max(_MARGIN_SHARE * duration, _MIN_MARGIN)
    deadline, period = options.renew_deadline, options.retry_period
    if deadline >= end:
        raise ConfigurationError(
            f"settings.leadership.renew_deadline is {deadline:g} s and must be less than "
            f"{end:g} s: lease_duration is {duration} s, less a margin for clocks that differ. "
            "Lower it, or raise lease_duration."
        )
    if period >= deadline:
        raise ConfigurationError(
            f"settings.leadership.retry_period is {period:g} s and must be less than "
            f"renew_deadline, {deadline:g} s: no renewal would be in time."
        )
    return LeaseTimes(
        duration=duration,
        deadline=deadline,
        cancellation=end - min(_LAST_MOMENTS, (end - deadline) / 2),
        end=end,
        period=period,
        request_timeout=deadline / 2,
    )


@dataclass(frozen=True, slots=True)
class Record:
    """The content of a Lease.

    Attributes:
        holder: the identity of the holder; empty if there is none.
        duration: in seconds; None if absent.
        acquired_at: when the holder acquired it, as text.
        renewed_at: when the holder last renewed it, as text.
    """

    holder: str
    duration: float | None
    acquired_at: str
    renewed_at: str

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Record:
        """Parse a Lease of any program; invalid fields count as absent."""
        spec = raw.get("spec") or {}
        duration = spec.get("leaseDurationSeconds")
        return cls(
            holder=str(spec.get("holderIdentity") or ""),
            duration=float(duration) if isinstance(duration, int | float) else None,
            acquired_at=str(spec.get("acquireTime") or ""),
            renewed_at=str(spec.get("renewTime") or ""),
        )

    def is_of_term(self, other: Record | None) -> bool:
        """Return whether both have the same holder, without an interruption.

        The identity is not enough, because a restarted process can have the same one.
        """
        return other is not None and (self.holder, self.acquired_at) == (
            other.holder,
            other.acquired_at,
        )

    def __str__(self) -> str:
        since = f" since {self.acquired_at}" if self.acquired_at else ""
        return f"held by {self.holder!r}{since}" if self.holder else "not held"


NOTHING = Record(holder="", duration=None, acquired_at="", renewed_at="")


def claim(
    name: str, raw: Mapping[str, Any] | None, holder: str, duration: int, now: dt.datetime
) -> dict[str, Any]:
    """Return a Lease with a new holder; an existing one keeps its version, as a precondition."""
    moment = format_time(now)
    count = -1 if raw is None else (raw.get("spec") or {}).get("leaseTransitions") or 0
    return _write(
        raw or {"metadata": {"name": name}},
        holderIdentity=holder,
        leaseDurationSeconds=duration,
        acquireTime=moment,
        renewTime=moment,
        leaseTransitions=count + 1,
    )


def renew(raw: Mapping[str, Any], duration: int, now: dt.datetime) -> dict[str, Any]:
    """Return the Lease as renewed by its holder."""
    return _write(raw, leaseDurationSeconds=duration, renewTime=format_time(now))


def release(raw: Mapping[str, Any], now: dt.datetime) -> dict[str, Any]:
    """Return the Lease as released by its holder: others can acquire it at once."""
    moment = format_time(now)
    return _write(
        raw, holderIdentity="", leaseDurationSeconds=1, acquireTime=moment, renewTime=moment
    )


def format_time(moment: dt.datetime) -> str:
    """Format a time as Kubernetes does in Leases (meta/v1, MicroTime)."""
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _write(raw: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """Return the object with changed fields; other fields stay."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        **raw,
        "spec": {**(raw.get("spec") or {}), **fields},
    }


def is_newer(version: str | None, raw: dict[str, Any] | None) -> bool:
    """Return whether a version is later than that of an object; True if it is not a number."""
    number = parse_number(version)
    return number == 0 or raw is None or number > parse_version(raw)
