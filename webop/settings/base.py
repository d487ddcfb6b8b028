"""The base class and the types of the groups of settings: validation on assignment."""

from __future__ import annotations

import difflib
import inspect
import itertools
import logging
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from webop.logs.sanitizing import describe_line
from webop.objects.names import LABEL, SUBDOMAIN
from webop.objects.rights import parse_right

logger = logging.getLogger(__name__)


def check_delays(value: Any) -> Any:
    """Refuse values that are not delays.

    Iterables can be infinite or stateful. Only lists and tuples are checked here.
    """
    is_number = isinstance(value, int | float)
    is_series = isinstance(value, Iterable) and not isinstance(value, str | bytes)
    if not (is_number or is_series):
        raise ValueError("it must be a number of seconds, or an iterable of such numbers")
    for item in [value] if is_number else value if isinstance(value, list | tuple) else ():
        if isinstance(item, bool) or not (isinstance(item, int | float) and item >= 0):
            raise ValueError(f"{item!r} is not a number of seconds")
    return value


def _check_number(value: Any) -> Any:
    """Refuse True and False, which pydantic would convert to 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("it must be a number")  # noqa: TRY004  for pydantic to collect
    return value


def _parse_level(value: Any) -> Any:
    """Convert the name of a level to its number."""
    if not isinstance(value, str):
        return value
    level = logging.getLevelNamesMapping().get(value.upper(), value)
    if isinstance(level, str) and level.isalpha():
        raise ValueError("it must be a number or the name of a level, such as 20 or INFO")
    return level


def _check_server(value: Any) -> Any:
    """Refuse values that are not webhook servers (chapter "Admission control")."""
    is_class = isinstance(value, type) and hasattr(value, "__aenter__")
    if value is None or (callable(value) and not is_class):
        return value
    raise ValueError("it must be a webhook server, such as webop.WebhookServer(port=9443)")


def _check_subdomain(value: Any) -> Any:
    """Refuse strings that cannot be the name of a webhook configuration (RFC 1123, subdomain)."""
    if isinstance(value, str) and value and not SUBDOMAIN.fullmatch(value):
        raise ValueError("it must be a lower-case DNS name, such as auto.example.com")
    return value


def _check_label(value: Any) -> Any:
    """Refuse strings that not all objects can have as their name (RFC 1035, label)."""
    if not (isinstance(value, str) and LABEL.fullmatch(value)):
        text = "it must be 1 to 63 lowercase letters, digits and '-'"
        raise ValueError(f"{text}, and begin with a letter, such as shop-operator")
    return value


def _check_rights(value: Any) -> Any:
    """Refuse values that are not rights: a list, or one string separated by spaces."""
    texts = value.split() if isinstance(value, str) else value or ()
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise ValueError("it must be a list of strings such as 'secrets:get,list'")
    for text in texts:
        parse_right(text)
    return tuple(texts)


def _warn(value: Any, info: ValidationInfo) -> Any:
    """Warn that a setting of Kopf has no effect."""
    logger.warning("The setting %s has no effect in webop. Remove it.", info.field_name)
    return value


Seconds = Annotated[float, BeforeValidator(_check_number), Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, BeforeValidator(_check_number), Field(gt=0, allow_inf_nan=False)]
WithoutEffect = Annotated[Seconds | None, AfterValidator(_warn)]
Delays = Annotated[float | Iterable[float], PlainValidator(check_delays)]
Level = Annotated[int, BeforeValidator(_parse_level)]
Server = Annotated[Any, PlainValidator(_check_server)]
Subdomain = Annotated[str | None, BeforeValidator(_check_subdomain)]
Label = Annotated[str, BeforeValidator(_check_label)]
Rights = Annotated[Sequence[str], PlainValidator(_check_rights)]


_HERE = Path(__file__).parent

#: Characters of a value in error messages.
LONGEST = 200
_PLAIN = {
    "number": "a number",
    "integer": "a whole number",
    "boolean": "True or False",
    "string": "a string",
    "dictionary": "a mapping",
    "frozenset": "a list",
    "list": "a list",
}


class UnknownSettingError(AttributeError):
    """Raised when code reads a setting or a group that does not exist."""


_UNKNOWN = "There is no such setting"


def find_setters(section: type[Section]) -> dict[str, property]:
    """Return the settings that are properties: ``namespaced``, ``max_workers``."""
    return {
        name: item
        for name, item in inspect.getmembers_static(section)
        if isinstance(item, property) and item.fset is not None
    }


def _suggest(name: str, kind: type[Section]) -> str:
    known = [*kind.model_fields, *find_setters(kind)]
    nearest = difflib.get_close_matches(name, known, n=1)
    return f", did you mean {nearest[0]!r}?" if nearest else "."


def _name_group(title: str) -> tuple[str, ...]:
    """Return the path of a group from the name of its class."""
    group = title.removesuffix("Settings").lower()
    return {"operator": (), "identity": ("operator",)}.get(group, (group,))


class Section(BaseModel):
    """A group of settings. It refuses unknown names and invalid values on assignment."""

    model_config = ConfigDict(
        validate_assignment=True,
        extra="forbid",
        arbitrary_types_allowed=True,
        defer_build=True,  # keeps the import of handlers fast
    )

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a setting.

        Raises:
            pydantic.ValidationError: the name is unknown, with a suggestion; or the value is
                invalid.
        """
        kind = type(self)
        if not (name in kind.model_fields or hasattr(kind, name) or name.startswith("_")):
            hint = _suggest(name, kind)
            raise self._build_error(name, value, f"{_UNKNOWN}{hint}")
        super().__setattr__(name, value)

    def _build_error(self, name: str, value: Any, text: str) -> ValidationError:
        error = PydanticCustomError("wrong_setting", "{text}", {"text": text})
        details = InitErrorDetails(type=error, loc=(name,), input=value)
        return ValidationError.from_exception_data(type(self).__name__, [details])

    if not TYPE_CHECKING:  # mypy reports unknown names itself

        def __getattr__(self, name: str) -> Any:
            """Refuse an unknown name, with a suggestion.

            Raises:
                UnknownSettingError: no setting or group has this name.
            """
            try:
                return super().__getattr__(name)
            except AttributeError:
                if name.startswith("_"):
                    raise
                kind = type(self)
                group = _name_group(kind.__name__)
                hint = _suggest(name, kind)
                raise UnknownSettingError(
                    f"There is no setting {'.'.join(('settings', *group, name))}{hint}"
                ) from None


def find_setting_problem(exc: BaseException) -> str | None:
    """Return the error about a setting as a sentence, with the line of code that set it.

    Return None for other errors.
    """
    if isinstance(exc, UnknownSettingError):
        return f"{exc}{_locate(exc)}"
    if not isinstance(exc, ValidationError) or exc.title not in _list_names(Section):
        return None
    error = exc.errors()[0]
    setting = ".".join(["settings", *_name_group(exc.title), *map(str, error["loc"])])
    given, why = repr(error["input"])[:LONGEST], describe_mismatch(error)
    if why.startswith(_UNKNOWN):
        return f"There is no setting {setting}{why.removeprefix(_UNKNOWN)}{_locate(exc)}"
    return f"{setting} = {given} is invalid: {why}{_locate(exc)}"


def describe_mismatch(error: ErrorDetails, subject: str = "it") -> str:
    """Return an error of pydantic as a sentence, such as "it must be a number."."""
    words = error["msg"].split(", unable to")[0].removeprefix("Value error, ")
    words = words.replace("Input should", f"{subject} must")
    for kind, plain in _PLAIN.items():
        words = words.replace(f"a valid {kind}", plain)
    return words if words.endswith("?") else f"{words.rstrip('.')}."


def _locate(exc: BaseException) -> str:
    """Return the line outside of this package that caused the error."""
    frames = traceback.extract_tb(exc.__traceback__)
    users = list(itertools.takewhile(lambda frame: Path(frame.filename).parent != _HERE, frames))
    if not 0 < len(users) < len(frames):
        return ""
    return f" {describe_line(users[-1].filename, users[-1].lineno, users[-1].line)}"


def _list_names(kind: type[Section]) -> set[str]:
    inner = (_list_names(item) for item in kind.__subclasses__())
    return {kind.__name__}.union(*inner)
