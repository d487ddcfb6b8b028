"""Set settings from environment variables, and warn of unknown variables with our prefix.

The variable of a setting is ``WEBOP_<GROUP>__<NAME>``. An unknown variable is most likely a typo:
webop logs a warning with the nearest name. An invalid value is an error.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_type_hints

from webop.errors import ConfigurationError
from webop.objects.typed_values import LONGEST
from webop.settings.base import Section, SettingError, find_setters, list_fields
from webop.settings.values import parse

logger = logging.getLogger(__name__)

PREFIX = "WEBOP_"

_IN_CODE = frozenset(
    {
        *("server", "executor", "progress_storage", "diffbase_storage"),
        *("label_selectors", "field_selectors", "shard_selectors"),
    }
)
_DELAYS = frozenset({"error_delays", "error_backoffs"})
_ALIASES = {"queueing": "batching"}

_OPTIONS = {
    "": ("MODULES", "ALL_NAMESPACES", "NAMESPACES", "ALIASED"),  # for webop.app
    "RUN_": (
        *("VERBOSE", "DEBUG", "QUIET", "LOG_FORMAT", "LOG_PREFIX", "LOG_REFKEY"),
        *("CLUSTERWIDE", "NAMESPACES", "MODULES", "RELOAD", "STANDALONE", "PEERING", "PRIORITY"),
        *("DEV", "LEASE", "SHARDS", "TAKE_OVER", "LIVENESS_ENDPOINT", "METRICS", "STATUS"),
    ),
}
OPTION_NAMES = [f"{PREFIX}{command}{name}" for command, names in _OPTIONS.items() for name in names]

# Variables that are valid but should not be suggested: local clusters, webop's own development, and
# those that Kubernetes sets in all containers for a Service whose name begins with "webop"
# (Kubernetes documentation: "Service", environment variables).
_OTHERS = re.compile(
    r"""WEBOP_(
        CACHE | ENVTEST_INDEX | KUBERNETES(_RELEASES)? | SERVICE | PEER_PYTHON | VERSION
        | BENCH_.+
        | (\w+_)?SERVICE_(HOST|PORT(_\w+)?)
        | (\w+_)?PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?
    )""",
    re.VERBOSE,
)


def apply_environment(settings: Section, environment: Mapping[str, str]) -> None:
    """Set the settings that have variables, and warn of unknown variables.

    Raises:
        ConfigurationError: a value is invalid, or the setting can be set only in code.
    """
    own = {name: text for name, text in sorted(environment.items()) if name.startswith(PREFIX)}
    if not own:
        return
    known = dict(list_variables(settings))
    for variable, text in own.items():
        path = known.get(variable.upper())
        if path is not None:
            _assign(getattr(settings, path[0]), variable, path, text)
        elif variable not in OPTION_NAMES and not _OTHERS.fullmatch(variable):
            nearest = difflib.get_close_matches(variable, [*known, *OPTION_NAMES], 1, cutoff=0.75)
            hint = "No setting and no option has this name."
            if nearest:
                hint = f"Did you mean {nearest[0]}?"
            logger.warning("Ignoring the unknown environment variable %s. %s", variable, hint)


def list_variables(settings: Section) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the variable of each setting, with the group and the name of the setting."""
    groups = {name: name for name in list_fields(type(settings))} | _ALIASES
    for group, attribute in groups.items():
        section = type(getattr(settings, attribute))
        for name in (*list_fields(section), *find_setters(section)):
            yield f"{PREFIX}{group}__{name}".upper(), (attribute, name)
    yield f"{PREFIX}CANARY", ("leadership", "canary_shards")


def _assign(section: Section, variable: str, path: tuple[str, str], text: str) -> None:
    group, name = path
    if name in _IN_CODE:
        raise ConfigurationError(
            f"{variable}: {group}.{name} can only be set in code, such as in a startup handler."
        )
    try:
        setattr(section, name, _parse(type(section), name, text))
    except ValueError as exc:
        why = exc.why if isinstance(exc, SettingError) else f"{exc}."
        given = repr(text)[:LONGEST]
        raise ConfigurationError(f"{variable}={given} is invalid: {why}") from exc


def _parse(section: type[Section], name: str, text: str) -> Any:
    """Return the value for a setting; its type parses the rest."""
    text = text.strip()
    if name in _DELAYS:
        words = [] if text.lower() == "none" else text.split(",")
        try:
            return tuple(float(word) for word in words if word.strip())
        except ValueError as exc:
            raise ValueError("it must be seconds separated by commas, such as 1,2,5") from exc
    value = None if text.lower() in ("", "none") else text
    setter = find_setters(section).get(name)
    return value if setter is None else parse(get_type_hints(setter.fget)["return"], value)
