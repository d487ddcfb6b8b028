"""The thread pools of sync functions, as settings: who has one, and how large it is."""

from __future__ import annotations

import concurrent.futures
from typing import ClassVar, NamedTuple

from webop.settings.base import Section


class Threads(NamedTuple):
    """The threads for sync functions of one kind."""

    name: str  # the prefix of their names, after "webop-"
    calls: str  # what runs in them, for messages
    group: str  # of the settings
    size: int | None = None  # the default limit; None for Python's own default

    def build_executor(self, size: int | None) -> concurrent.futures.Executor:
        """Return a pool that starts threads when it needs them."""
        if size is not None and type(size) is not int:
            raise ValueError(f"The number of threads for sync {self.calls} must be an integer.")
        if size is not None and size < 1:
            raise ValueError(f"The number of threads for sync {self.calls} must be at least 1.")
        return concurrent.futures.ThreadPoolExecutor(size, thread_name_prefix=f"webop-{self.name}")

    def build_default(self) -> concurrent.futures.Executor:
        """Return a pool of the default size."""
        return self.build_executor(self.size)


class PoolSection(Section):
    """A group with a pool of threads."""

    threads: ClassVar[Threads]
    executor: concurrent.futures.Executor

    @property
    def max_workers(self) -> int | None:
        """The maximum number of threads. Setting it creates a new executor."""
        return getattr(self.executor, "_max_workers", None)

    @max_workers.setter
    def max_workers(self, value: int | None) -> None:
        try:
            self.executor = self.threads.build_executor(value)
        except ValueError as exc:
            raise self._build_error("max_workers", value, str(exc)) from None
