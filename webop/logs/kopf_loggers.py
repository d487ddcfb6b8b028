"""Apply what operators set on the loggers of Kopf to the loggers of webop.

The loggers of webop keep their names. Those of Kopf become their parents, as in
``webop.objects`` → ``kopf.objects`` → ``webop`` → ``kopf`` → root. So :mod:`logging` itself takes
levels and handlers from both, first from ours; filters and ``disabled``, which are not inherited,
are asked by a filter of ours.
"""

from __future__ import annotations

import logging

_ACTIVITIES = ("startup", "cleanup", "authentication", "probe")
_NAMES = ("", ".objects", ".activities", *(f".activities.{activity}" for activity in _ACTIVITIES))


def join_loggers() -> None:
    """Put the loggers of Kopf between those of webop and their parents; once in a process."""
    for name in _NAMES:
        ours, theirs = logging.getLogger(f"webop{name}"), logging.getLogger(f"kopf{name}")
        if ours.parent is not theirs:
            ours.parent, theirs.parent = theirs, ours.parent
            ours.addFilter(_Permission(theirs))


def restore_loggers() -> None:
    """Enable loggers of webop again that ``logging.config`` disabled, if it names those of Kopf.

    It finds the children of ``kopf`` by their names, and disables others, such as those of webop.
    """
    if not logging.getLogger("webop").disabled:
        return
    for name, logger in list(logging.Logger.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and f"{name}.".startswith("webop."):
            suffix = name.removeprefix("webop")
            theirs = logging.getLogger(f"kopf{suffix}" if suffix in _NAMES else "kopf")
            logger.disabled = logger.disabled and theirs.disabled


class _Permission(logging.Filter):
    """Lets a record of webop pass if the logger of Kopf would let it pass."""

    def __init__(self, theirs: logging.Logger) -> None:
        super().__init__()
        self._theirs = theirs
        self._top = logging.getLogger("kopf")  # disabled by logging.config: so are those not named

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record passes; since Python 3.12, filters may replace it."""
        theirs = self._theirs
        is_enabled = not theirs.disabled or self._top.disabled
        return is_enabled and (not theirs.filters or theirs.filter(record))
