"""The results of methods that can be long: awaited as a list, or read one by one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


class Items(Coroutine[Any, Any, list[T]], AsyncIterable[T]):
    """The objects or lines that a method of the client reads: use it once, in one of two ways.

    ::

        pods = await client.list("pods")  # a list
        async for pod in client.list("pods"):  # one page in memory
            print(pod["metadata"]["name"])
    """

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        self._items = items
        self._all = _collect(items)

    def __aiter__(self) -> AsyncGenerator[T, None]:
        """Read one by one."""
        self._all.close()  # it was not awaited on purpose
        return self._items

    def __iter__(self) -> Generator[Any, Any, list[T]]:
        """Refuse a plain loop.

        Raises:
            TypeError: always.
        """
        self._all.close()
        raise TypeError("Use 'await' before the call, or 'async for' instead of 'for'.")

    def __await__(self) -> Generator[Any, Any, list[T]]:
        """Read all."""
        return self._all.__await__()

    # So it can be a task.

    def send(self, value: Any, /) -> Any:
        """Continue, as a coroutine."""
        return self._all.send(value)

    def throw(self, *exc: Any) -> Any:
        """Raise an exception where it waits, as a coroutine."""
        return self._all.throw(*exc)

    def close(self) -> None:
        """End it, as a coroutine."""
        self._all.close()


async def _collect(items: AsyncGenerator[T, None]) -> list[T]:
    return [item async for item in items]
