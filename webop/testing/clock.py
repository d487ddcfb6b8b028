"""The time of tests."""

from __future__ import annotations

import datetime as dt


class Clock:
    """The time of a :class:`FakeClient`, which stands still until the test moves it.

    ::

        client = webop.testing.FakeClient(SITE, now=datetime(2026, 1, 1, tzinfo=UTC))
        client.clock.advance(hours=1)
        client.clock.now = datetime(2026, 1, 31, 12, tzinfo=UTC)

    Time does not go back. Pauses and timeouts last as long as without it: see
    docs/howto/testing_fake.md.

    Args:
        now: the time at the start, with a time zone; by default, the clock of the machine goes on
            until the test moves this one.

    Raises:
        ValueError: the time has no zone, or would go back.
    """

    def __init__(self, now: dt.datetime | None = None) -> None:
        self._now = None if now is None else _convert_to_utc(now)

    @property
    def now(self) -> dt.datetime:
        """The time, in UTC."""
        return self._now or dt.datetime.now(dt.UTC)

    @now.setter
    def now(self, moment: dt.datetime) -> None:
        moment, present = _convert_to_utc(moment), self.now
        if moment < present:
            raise ValueError(
                f"Time cannot go back from {present} to {moment}. Begin with an earlier now=."
            )
        self._now = moment

    def advance(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0
    ) -> None:
        """Move the time forward."""
        self._now = self.now  # it stops
        self.now += dt.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)


def _convert_to_utc(moment: dt.datetime) -> dt.datetime:
    given: object = moment
    if not isinstance(given, dt.datetime) or given.utcoffset() is None:
        raise ValueError(
            "The time must be a datetime with a time zone, such as "
            f"datetime(2026, 1, 1, tzinfo=UTC), got {given!r}."
        )
    return given.astimezone(dt.UTC)
