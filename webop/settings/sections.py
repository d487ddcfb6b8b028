"""What the groups of settings are made of: checked on assignment, with pools of threads."""

from __future__ import annotations

import concurrent.futures
import difflib
import logging
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
)
from pydantic_core import InitErrorDetails, PydanticCustomError


def _check_delays(value: Any) -> Any:
    """Refuse what is no delay; iterables may be infinite or stateful, and are iterated at use."""
    is_number = isinstance(value, int | float)
    is_series = isinstance(value, Iterable) and not isinstance(value, str | bytes)
    if not (is_number or is_series):
        raise ValueError("it must be a number of seconds, or an iterable of such numbers")
    for item in [value] if is_number else value if isinstance(value, list | tuple) else ():
        if isinstance(item, bool) or not (isinstance(item, int | float) and item >= 0):
            raise ValueError(f"{item!r} is not a number of seconds")
    return value


def _check_seconds(value: Any) -> Any:
    """Refuse what pydantic takes for 0 or 1: False is not the same as no limit."""
    if isinstance(value, bool):
        raise ValueError("it must be a number of seconds")  # noqa: TRY004  for pydantic to collect
    return value


def _parse_level(value: Any) -> Any:
    """Accept the names of levels, too."""
    if not isinstance(value, str):
        return value
    level = logging.getLevelNamesMapping().get(value.upper(), value)
    if isinstance(level, str) and level.isalpha():
        raise ValueError("it must be a number or the name of a level, such as 20 or INFO")
    return level


def _check_server(value: Any) -> Any:
    """Refuse what cannot be called as webhook servers are (chapter "Admission control")."""
    is_class = isinstance(value, type) and hasattr(value, "__aenter__")
    if value is None or (callable(value) and not is_class):
        return value
    raise ValueError("it must be a webhook server, such as webop.WebhookServer(port=9443)")


Seconds = Annotated[float, BeforeValidator(_check_seconds), Field(ge=0, allow_inf_nan=False)]
Delays = Annotated[float | Iterable[float], PlainValidator(_check_delays)]
Level = Annotated[int, BeforeValidator(_parse_level)]
Server = Annotated[Any, PlainValidator(_check_server)]


class Section(BaseModel):
    """A group of settings: unknown names and values of wrong types are refused on assignment."""

    model_config = ConfigDict(
        validate_assignment=True,
        extra="forbid",
        arbitrary_types_allowed=True,
        defer_build=True,  # importing handlers is to be fast
    )

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a setting, or say which one was probably meant.

        Raises:
            pydantic.ValidationError: there is none of this name, or the value does not fit.
        """
        kind = type(self)
        if not (name in kind.model_fields or hasattr(kind, name) or name.startswith("_")):
            nearest = difflib.get_close_matches(name, kind.model_fields, n=1)
            hint = f", did you mean '{nearest[0]}'?" if nearest else "."
            error = PydanticCustomError(
                "unknown_setting", "There is no such setting{hint}", {"hint": hint}
            )
            raise ValidationError.from_exception_data(
                kind.__name__, [InitErrorDetails(type=error, loc=(name,), input=value)]
            )
        super().__setattr__(name, value)


def find_setting_problem(exc: BaseException) -> str | None:
    """Return what is wrong with a value for a setting; None if the error is about anything else."""
    if not isinstance(exc, ValidationError) or exc.title not in _list_names(Section):
        return None
    error = exc.errors()[0]
    setting = ".".join([exc.title.removesuffix("Settings").lower(), *map(str, error["loc"])])
    why = error["msg"].removeprefix("Value error, ").rstrip(".")
    return f"settings.{setting} = {error['input']!r} does not fit: {why}."


def _list_names(kind: type[Section]) -> set[str]:
    inner = (_list_names(item) for item in kind.__subclasses__())
    return {kind.__name__}.union(*inner)


class Threads(NamedTuple):
    """The threads for sync functions of one kind.

    Attributes:
        name: what the threads are called by, after "webop-".
        calls: what runs there, in words.
        group: the group of settings that it belongs to.
        size: how many threads there are at most by default; None for Python's own default.
    """

    name: str
    calls: str
    group: str
    size: int | None = None

    def build_executor(self, size: int | None) -> concurrent.futures.Executor:
        """Return a pool of threads, which are started only as they are needed.

        Raises:
            ValueError: the size is not positive.
        """
        if size is not None and type(size) is not int:
            raise ValueError(f"The number of threads for sync {self.calls} is no {size!r}.")
        if size is not None and size < 1:
            raise ValueError(f"At least one thread is needed for sync {self.calls}, not {size}.")
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
        """How many threads the executor has; setting it makes a new executor."""
        return getattr(self.executor, "_max_workers", None)

    @max_workers.setter
    def max_workers(self, value: int | None) -> None:
        self.executor = self.threads.build_executor(value)
