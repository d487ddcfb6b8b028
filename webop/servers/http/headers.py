"""The headers of a review's HTTP request, as handlers see them in ``headers``."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping


class RequestHeaders(Mapping[str, str]):
    """A read-only mapping of header names in their usual spelling ("Content-Type") to values.

    Names are not case-sensitive. Values of a repeated header are joined (RFC 9110, 5.3). The
    headers are decoded at the first access, as few handlers use them.
    """

    __slots__ = ("_decoded", "_raw")

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._raw = raw
        self._decoded: dict[str, str] | None = None

    def __getitem__(self, name: str) -> str:
        return self._values[name.title()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)

    @property
    def _values(self) -> dict[str, str]:
        if self._decoded is None:
            values: dict[str, str] = {}
            for raw_name, raw_value in self._raw:
                name, value = _spell(raw_name), raw_value.decode("latin-1")
                values[name] = f"{values[name]}, {value}" if name in values else value
            self._decoded = values
        return self._decoded


@functools.lru_cache(maxsize=256)
def _spell(name: bytes) -> str:
    return name.decode("latin-1").title()
