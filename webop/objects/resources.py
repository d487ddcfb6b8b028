"""Kinds of resources: those that a cluster has, and those that handlers ask for.

The discovery makes a :class:`Resource` of each kind of the cluster. The decorators make a
:class:`Selector` of their arguments (chapter "Resource specification" of the manual).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any, Final, TypeAlias, TypedDict, Unpack
from urllib.parse import quote, urlencode

_STAGES: Final = {"alpha": 0, "beta": 1, None: 2}


def guess_plural(kind: str) -> str:
    """Return the usual plural name of a kind, as code generators do."""
    name = kind.lower()
    if name == "endpoints":
        return name
    stem = f"{name[:-1]}ie" if re.search("[^aeiou]y$", name) else name
    return f"{stem}es" if re.search("([sxz]|[cs]h)$", name) else f"{stem}s"


def rank_version(version: str) -> tuple[int, ...]:
    """Return the sort key of a version, as API servers rank them: v2, v1, v1beta1, v1alpha1."""
    matched = re.fullmatch(r"v(\d+)(?:(alpha|beta)(\d+))?", version)
    return (_STAGES[matched[2]], int(matched[1]), int(matched[3] or 0)) if matched else (-1,)


def is_protected(group: str) -> bool:
    """Return whether definitions in a group need the approval of the Kubernetes community."""
    return f".{group}".endswith((".k8s.io", ".kubernetes.io"))


_ONE_KIND = {"any_name", "plural", "kind", "singular", "shortcut"}  # names that decorators take
_NAMING = _ONE_KIND | {"version", "group"}


@dataclass(frozen=True, repr=False)
class Resource:
    """A kind of resource that exists in a cluster, as discovery describes it.

    Equal are those of the same group, version and plural name, whatever else is known.

    Attributes:
        group: the API group, such as "apps"; empty for the core API.
        version: the version of the group, such as "v1".
        plural: the plural name, as in URLs.
        kind: the kind, as in manifests.
        singular: the singular name.
        shortcuts: short names, such as "po".
        categories: groups of kinds, such as "all".
        subresources: such as "status" and "scale".
        namespaced: whether its objects belong to namespaces; None if not known.
        preferred: whether the version is the one to take if none is asked for.
        verbs: what the API can do with it, such as "list" and "watch".
    """

    group: str
    version: str
    plural: str
    kind: str | None = field(default=None, compare=False)
    singular: str | None = field(default=None, compare=False)
    shortcuts: frozenset[str] = field(default=frozenset(), compare=False)
    categories: frozenset[str] = field(default=frozenset(), compare=False)
    subresources: frozenset[str] = field(default=frozenset(), compare=False)
    namespaced: bool | None = field(default=None, compare=False)
    preferred: bool = field(default=True, compare=False)
    verbs: frozenset[str] = field(default=frozenset(), compare=False)

    def __iter__(self) -> Iterator[str]:
        """Unpack it as the arguments of a decorator: ``@webop.on.event(*resource)``."""
        return iter((self.group, self.version, self.plural))

    def __repr__(self) -> str:
        return self.name

    @cached_property
    def name(self) -> str:
        """The full name as kubectl takes it: "pods.v1", "deployments.v1.apps"."""
        return ".".join(part for part in (self.plural, self.version, self.group) if part)

    @cached_property
    def plural_name(self) -> str:
        """The name of all versions, as in RBAC: "pods", "deployments.apps"."""
        return f"{self.plural}.{self.group}".rstrip(".")

    @cached_property
    def api_version(self) -> str:
        """The value of ``apiVersion`` of its objects: "v1", "apps/v1"."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @cached_property
    def _root(self) -> str:
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"

    def get_url(
        self,
        *,
        server: str | None = None,
        namespace: str | None = None,
        name: str | None = None,
        subresource: str | None = None,
        params: dict[str, str] | None = None,
    ) -> str:
        """Build the URL of the list of objects, or of one of them.

        Args:
            server: what to begin with, such as "https://localhost:6443"; by default only the path.
            namespace: the list or the object is that of a namespace; None for the whole cluster.
                Ignored if the objects do not belong to namespaces.
            name: of the object; None for the list.
            subresource: is appended as it is, known or not.
            params: the query.

        Raises:
            ValueError: a subresource without a name, or an object that must have a namespace but
                has none.
        """
        if name is None and subresource is not None:
            raise ValueError(f"The subresource {subresource!r} of {self} needs an object's name.")
        if name is not None and namespace is None and self.namespaced:
            raise ValueError(f"The object {name!r} of {self} needs a namespace.")
        url = self._root
        if namespace is not None and self.namespaced is not False:
            url = f"{url}/namespaces/{_quote(namespace)}"
        url = f"{url}/{self.plural}"
        if name is not None:
            url = f"{url}/{_quote(name)}"
        if subresource is not None:
            url = f"{url}/{subresource}"
        if params:
            url = f"{url}?{urlencode(params)}"
        return url if server is None else server.rstrip("/") + url


CRDS: Final = Resource(
    group="apiextensions.k8s.io",
    version="v1",
    plural="customresourcedefinitions",
    kind="CustomResourceDefinition",
    namespaced=False,
)
NAMESPACES: Final = Resource(
    group="",
    version="v1",
    plural="namespaces",
    kind="Namespace",
    singular="namespace",
    shortcuts=frozenset({"ns"}),
    namespaced=False,
)


# Names of RBAC roles may have any character but "/" and "%"; all others are like host names.
_is_plain: Final = re.compile(r"[a-zA-Z0-9._:~-]+").fullmatch


def _quote(name: str) -> str:
    return name if _is_plain(name) else quote(name, safe="")


class Marker(Enum):
    """Takes the place of a name in a selector."""

    EVERYTHING = "EVERYTHING"

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


EVERYTHING: Final = Marker.EVERYTHING
"""All kinds of the cluster, of a group, or of a version, except events::

    @webop.on.event(webop.EVERYTHING)
    def trace(resource: webop.Resource, name, **_):
        print(resource, name)
"""

ResourceFn: TypeAlias = Callable[[Resource], bool]

# "pods.v1", "crontabs.v1beta1.stable.example.com"; another second part is taken for the group.
_WITH_VERSION: Final = re.compile(r"([^.]+)\.(v\d+(?:(?:alpha|beta)\d+)?)(?:\.(.+))?")
_NO_NAME: Final = re.compile(r".*\..*|v\d+(?:(?:alpha|beta)\d+)?")  # if the group is beside it


class SelectorNames(TypedDict, total=False):
    """The keywords of the decorators that say which resources a handler is for."""

    group: str | None
    """The API group, such as ``"apps"``; ``""`` for the core API"""
    version: str | None
    """The version of the API, such as ``"v1"``; by default the preferred one of the cluster"""
    kind: str | None
    """The kind as in manifests, such as ``"Deployment"``"""
    plural: str | None
    """The plural name as in URLs, such as ``"deployments"``"""
    singular: str | None
    """The singular name, such as ``"deployment"``"""
    shortcut: str | None
    """A short name, such as ``"deploy"``"""
    category: str | None
    """A category of kinds, such as ``"all"``"""


_NAMES: Final = ("kind", "plural", "singular", "shortcut", "category", "any_name", "fn")


@dataclass(frozen=True, repr=False)
class Selector:
    """The resources that a handler is for: by a name, a category, a function, or all of them.

    Made by :func:`parse_selector` from the arguments of the decorators. Exactly one of the
    attributes from `kind` to `fn` is set.
    """

    group: str | None = None  # empty for the core API
    version: str | None = None  # None for the preferred one
    kind: str | None = None
    plural: str | None = None
    singular: str | None = None
    shortcut: str | None = None
    category: str | None = None
    any_name: str | Marker | None = None  # any of the four names above, or EVERYTHING
    fn: ResourceFn | None = field(default=None)  # decides for each resource

    def __post_init__(self) -> None:
        names = {key: value for key in _NAMES if (value := getattr(self, key)) is not None}
        if not names:
            raise TypeError(
                "A handler must name a resource: by its name, by kind=, plural=, singular=, "
                "shortcut= or category=, or by EVERYTHING."
            )
        if len(names) > 1:
            listed = ", ".join(f"{key}={value!r}" for key, value in names.items())
            raise TypeError(f"A resource must have exactly one name, got {listed}.")
        if "" in names.values():
            raise TypeError("The name of a resource must not be empty.")

    def __repr__(self) -> str:
        pairs = ((key, getattr(self, key)) for key in self.__dataclass_fields__)
        texts = (f"{key}={value!r}" for key, value in pairs if value is not None)
        return f"{type(self).__name__}({', '.join(texts)})"

    def __str__(self) -> str:
        name = self.any_name or self.plural or self.kind or self.singular or self.shortcut
        shown = _ONE_KIND
        if isinstance(name, str):  # as decorators take it
            name, shown = ".".join(filter(None, (name, self.version, self.group))), _NAMING
        pairs = ((key, getattr(self, key)) for key in reversed(self.__dataclass_fields__))
        rest = [f"{key}={value}" for key, value in pairs if key not in shown and value is not None]
        return ", ".join([*([] if name is None else [str(name)]), *rest])

    @property
    def is_specific(self) -> bool:
        """Whether one kind is meant, as opposed to a category, to everything, or a function."""
        return self.category is None and self.any_name is not EVERYTHING and self.fn is None

    def check(self, resource: Resource) -> bool:
        """Return whether the selector matches the resource.

        It matches Events only by name: handlers cause Events, so handling them would never end.
        """
        if self.group is not None and self.group != resource.group:
            return False
        if self.fn is not None:
            return not _is_event(resource) and bool(self.fn(resource))
        if self.version is not None:
            return self.version == resource.version and self._has_name(resource)
        return resource.preferred and self._has_name(resource)

    def may_be(self, resource: Resource) -> bool:
        """Return whether the selector can match a resource that was not discovered.

        Of such a resource, only the group, the version, the plural and the kind are known: it may
        have any singular, any short names and categories.
        """
        if self.check(resource):
            return True
        if self.fn is not None or _is_event(resource):
            return False
        if self.any_name is None and (self.plural is not None or self.kind is not None):
            return False
        has_group = self.group is None or self.group == resource.group
        return has_group and (self.version is None or self.version == resource.version)

    def _has_name(self, resource: Resource) -> bool:
        if self.any_name is EVERYTHING:
            return not _is_event(resource)
        if self.any_name is not None:
            names = (resource.plural, resource.singular, resource.kind, *resource.shortcuts)
            return self.any_name in names
        if self.category is not None:
            return self.category in resource.categories
        if self.shortcut is not None:
            return self.shortcut in resource.shortcuts
        return (
            (self.kind is None or self.kind == resource.kind)
            and (self.plural is None or self.plural == resource.plural)
            and (self.singular is None or self.singular == resource.singular)
        )

    def find_candidates(self, resources: Iterable[Resource]) -> Collection[Resource]:
        """Return all that match; for a specific name, the core API wins over other groups."""
        matching = {resource for resource in resources if self.check(resource)}
        if not self.is_specific:
            return matching
        return {resource for resource in matching if not resource.group} or matching

    def suggest(self, resources: Iterable[Resource], groups: Iterable[str] = ()) -> str:
        """Return a hint to append to a message if nothing matches; empty if there is none."""
        if not self.is_specific:
            return ""
        known = sorted(resources, key=lambda r: (r.preferred, r.name))
        if (full := f"{self.any_name}.{self.group}") in groups:
            return f" {full} is an API group: name a kind in it, such as widgets.{full}."
        if found := [r for r in known if replace(self, group=None, version=r.version).check(r)]:
            return f" The cluster has {', '.join(map(str, found))}."
        name = str(self.any_name or self.plural or self.kind or self.singular or self.shortcut)
        names = {
            name: resource
            for resource in known
            for name in (resource.plural, resource.kind, resource.singular)
            if name and self.group in (None, resource.group)
        }
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
        if close:
            return f" Did you mean {names[close[0]]}?"
        alike = difflib.get_close_matches(self.group or "", {*groups} - {""}, n=1, cutoff=0.8)
        is_other = bool(alike) and alike[0] != self.group
        return f" Did you mean the API group {alike[0]}?" if is_other else ""

    def list_rivals(self, resources: Iterable[Resource]) -> str:
        """Return the kinds that have the name if one is meant, but none served; "" otherwise."""
        found = self.find_candidates(resources) if self.is_specific else ()
        return ", ".join(sorted(map(str, found))) if len(found) > 1 else ""

    def select(self, resources: Iterable[Resource]) -> Collection[Resource]:
        """Return the resources to serve: none if the selector is ambiguous.

        :meth:`list_rivals` distinguishes an ambiguous selector from one that matches nothing.
        """
        candidates = self.find_candidates(resources)
        return set() if self.is_specific and len(candidates) > 1 else candidates


def _is_event(resource: Resource) -> bool:
    return resource.plural == "events" and resource.group in ("", "events.k8s.io")


@lru_cache(maxsize=256)
def select_objects(api_version: str, kind: str) -> Selector:
    """Return the selector of the kind of objects with these fields."""
    group, _, version = api_version.rpartition("/")
    return Selector(group=group, version=version, kind=kind)


def parse_selector(*args: Any, **names: Unpack[SelectorNames]) -> Selector:
    """Build a selector from the arguments of a decorator.

    The forms are those of the manual (chapter "Resource specification"): group, version, name;
    "group/version", name; group, name; "v1", name for the core API; "name", "name.group",
    "name.version", "name.version.group"; a function; or keywords. :data:`EVERYTHING` can stand
    for the name. Arguments that are None count as omitted.

    Raises:
        TypeError: too many arguments, of a wrong type, or in conflict with each other.
    """
    given = list(args)
    while given and given[-1] is None:
        given.pop()
    named = {key: value for key, value in names.items() if value is not None}
    if wrong := [key for key, value in named.items() if not isinstance(value, (str, Marker))]:
        raise TypeError(f"{wrong[0]}= must be a string, got {named[wrong[0]]!r}.")
    if unknown := named.keys() - SelectorNames.__annotations__.keys():
        raise TypeError(f"Resources cannot be selected by {', '.join(sorted(unknown))}.")
    parsed = _parse_positional(given)
    if conflicts := [key for key, value in named.items() if parsed.get(key, value) != value]:
        raise TypeError(f"Conflicting values for one resource: {', '.join(conflicts)}.")
    return Selector(**{**parsed, **named})


def _parse_positional(args: list[Any]) -> dict[str, Any]:
    if not args:
        return {}
    if len(args) > 3:
        raise TypeError(f"A resource has at most a group, a version and a name, got {args!r}.")
    *api, name = args
    if callable(name) and not api:
        return {"fn": name}
    if not isinstance(name, (str, Marker)):
        raise TypeError(f"The name of a resource must be a string or EVERYTHING, got {name!r}.")
    if isinstance(name, str) and "/" in name:
        raise TypeError(
            f"The name of a resource must not have a slash, got {name!r}. Name the API group as in "
            "'deployments.apps', and the subresource of a webhook with subresource=."
        )
    if not all(isinstance(part, str) or part is None for part in api):
        raise TypeError(f"The group and the version of a resource must be strings, got {api!r}.")
    if not api:
        return _parse_name(name)
    group, version = (*api, None)[:2]
    if version is None and group is not None and "/" in group:
        group, _, version = group.rpartition("/")
    elif version is None and group == "v1":
        group, version = "", "v1"
    if "." in (version or "") or (isinstance(name, str) and _NO_NAME.fullmatch(name)):
        raise TypeError(
            "The order is group, version, name, as in ('example.com', 'v1', 'widgets'), got "
            f"{(*args,)!r}."
        )
    named = {"any_name": name, "group": group, "version": version}
    return {key: part for key, part in named.items() if part is not None}


def _parse_name(name: str | Marker) -> dict[str, Any]:
    if isinstance(name, Marker):
        return {"any_name": name}
    if matched := _WITH_VERSION.fullmatch(name):
        name, version, group = matched.groups()
        return {"any_name": name, "version": version} | ({"group": group} if group else {})
    name, dot, group = name.partition(".")
    return {"any_name": name, "group": group} if dot else {"any_name": name}
