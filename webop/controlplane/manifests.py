"""Objects in a local cluster: applied from files, folders and code, looked at, deleted.

It is for preparing a cluster and for looking at what has become of it, with no kubectl and no
client library at hand. Kinds are looked up by the API server's own lists (Kubernetes API,
"API discovery"); objects are put by "Server-Side Apply", as ``kubectl apply --server-side`` does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import orjson
import yaml

from webop.errors import ClusterError, ConfigurationError

from .probes import Answer, Prober
from .processes import wait_a_moment

Json = dict[str, Any]
Manifest = str | os.PathLike[str] | Mapping[str, Any]

_MANAGER = "webop-tests"
_APPLY = "application/apply-patch+yaml"
_SUFFIXES = frozenset({".yaml", ".yml", ".json"})
# Others need these to be there.
_FIRST = ("CustomResourceDefinition", "Namespace")
_SERVING_TIMEOUT = 30.0  # seconds; a definition is served after some tenths of one


class Kind(NamedTuple):
    """Where the objects of a kind are.

    Attributes:
        prefix: the path of the group and the version, such as "/apis/apps/v1".
        plural: the name in paths, such as "deployments".
        is_namespaced: whether they are in namespaces.
    """

    prefix: str
    plural: str
    is_namespaced: bool

    def build_path(self, namespace: str | None, name: str = "") -> str:
        """Return the path of an object, or of all in a namespace."""
        folder = f"/namespaces/{quote(namespace)}" if self.is_namespaced and namespace else ""
        return f"{self.prefix}{folder}/{self.plural}" + (f"/{quote(name)}" if name else "")


class ObjectStore:
    """The objects of one API server.

    Args:
        prober: what sends requests.
        kinds: the kinds that are known by now; filled here.
    """

    def __init__(self, prober: Prober, kinds: dict[tuple[str, str], Kind]) -> None:
        self._prober = prober
        self._kinds = kinds

    def apply(
        self, manifests: Iterable[Manifest], namespace: str | None, *, dry_run: bool = False
    ) -> list[Json]:
        """Create or change objects, definitions and namespaces first; return them as stored.

        Raises:
            ConfigurationError: there is no such file, or something in it is no object.
            ClusterError: the API server refuses one, with its reason.
        """
        bodies = [dict(body) for manifest in manifests for body in read_manifest(manifest)]
        bodies.sort(key=lambda body: body.get("kind") not in _FIRST)
        return [self._apply(body, namespace, dry_run=dry_run) for body in bodies]

    def get(
        self, api_version: str, kind: str, name: str, namespace: str | None = None
    ) -> Json | None:
        """Return an object, or None if there is none.

        Raises:
            ClusterError: there is no such kind.
        """
        path = self._find(api_version, kind).build_path(namespace or "default", name)
        answer = self._prober.request("GET", path)
        if answer.status == 404:
            return None
        return _read(answer, f"{kind} {name} cannot be read")

    def delete(self, api_version: str, kind: str, name: str, namespace: str | None = None) -> None:
        """Ask for the deletion of an object; nothing happens if there is none.

        Raises:
            ClusterError: the API server refuses it, or there is no such kind.
        """
        path = self._find(api_version, kind).build_path(namespace or "default", name)
        answer = self._prober.request("DELETE", path)
        if answer.status != 404:
            _read(answer, f"{kind} {name} cannot be deleted")

    def _apply(self, body: Json, namespace: str | None, *, dry_run: bool) -> Json:
        kind = self._find(body["apiVersion"], body["kind"])
        metadata = body.get("metadata") or {}
        own, name = metadata.get("namespace"), metadata.get("name", "")
        what = f"{body['kind']} {name or metadata.get('generateName', '')}"
        if kind.is_namespaced and own and namespace and own != namespace:
            raise ConfigurationError(
                f"{what} says that it is for the namespace {own!r}, not for {namespace!r}: "
                "leave out one of them."
            )
        query = {"fieldManager": _MANAGER, "fieldValidation": "Strict"}
        query |= {"dryRun": "All"} if dry_run else {}
        path = kind.build_path(own or namespace or "default", name)
        if name:
            url = f"{path}?{urlencode({**query, 'force': 'true'})}"
            answer = self._prober.request("PATCH", url, body, _APPLY)
        else:
            answer = self._prober.request("POST", f"{path}?{urlencode(query)}", body)
        stored = _read(answer, f"{what} cannot be applied")
        if stored["kind"] == "CustomResourceDefinition" and not dry_run:
            self._wait_served(stored)
        return stored

    def _wait_served(self, definition: Json) -> None:
        """Wait until all versions of a custom resource are served, and known to discovery."""
        group, names = definition["spec"]["group"], definition["spec"]["names"]
        missing = [
            f"{group}/{version['name']}"
            for version in definition["spec"]["versions"]
            if version["served"]
        ]
        deadline = time.monotonic() + _SERVING_TIMEOUT
        while missing := [each for each in missing if not self._is_served(each, names)]:
            if time.monotonic() > deadline:
                raise ClusterError(f"{names['plural']} are not served in {', '.join(missing)}.")
            wait_a_moment()

    def _is_served(self, api_version: str, names: Json) -> bool:
        kinds = self._fetch(api_version)
        return names["kind"] in kinds and self._prober.has(
            f"{kinds[names['kind']].build_path(None)}?limit=1"
        )

    def _find(self, api_version: str, kind: str) -> Kind:
        if (api_version, kind) not in self._kinds:
            for name, found in self._fetch(api_version).items():
                self._kinds[api_version, name] = found
        try:
            return self._kinds[api_version, kind]
        except KeyError:
            raise ClusterError(
                f"There is no kind {kind!r} in {api_version!r}. If it is a custom resource, apply "
                "its definition first."
            ) from None

    def _fetch(self, api_version: str) -> dict[str, Kind]:
        """Return the kinds of a version of a group by name; nothing if there is no such one."""
        prefix = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        answer = self._prober.request("GET", prefix)
        if answer.status == 404:
            return {}
        resources = _read(answer, f"{api_version} cannot be discovered")["resources"]
        return {
            item["kind"]: Kind(prefix, item["name"], item["namespaced"])
            for item in resources
            if "/" not in item["name"]  # the others are subresources
        }


def read_manifest(manifest: Manifest) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a manifest: of a file, of the files of a folder, or the object itself.

    Raises:
        ConfigurationError: there is no such file, or something in it is no object.
    """
    if isinstance(manifest, Mapping):
        yield from _unpack(manifest, "the object")
        return
    path = Path(manifest)
    if not path.exists():
        raise ConfigurationError(f"There is no file {str(path)!r} to apply.")
    files = [path] if path.is_file() else sorted(path.iterdir())
    for file in files:
        if file == path or file.suffix in _SUFFIXES:
            for document in _parse(file):
                yield from _unpack(document, str(file))


def _parse(file: Path) -> list[Any]:
    try:
        documents = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{str(file)!r} is not YAML: {error}") from None
    return [document for document in documents if document is not None]


def _unpack(document: Any, place: str) -> Iterator[Mapping[str, Any]]:
    if not isinstance(document, Mapping) or not {"apiVersion", "kind"} <= document.keys():
        raise ConfigurationError(f"What is in {place} has no apiVersion and kind: {document!r:.80}")
    _check_types(document, place)
    if document["kind"] == "List":
        for item in document.get("items") or ():
            yield from _unpack(item, place)
    else:
        yield document


def _check_types(body: Mapping[str, Any], place: str) -> None:
    metadata = body.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise ConfigurationError(f"What is in {place} has no mapping for metadata: {metadata!r}")
    texts = {name: body[name] for name in ("apiVersion", "kind")}
    texts |= {f"metadata.{name}": metadata.get(name) or "" for name in ("name", "namespace")}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise ConfigurationError(
                f"What is in {place} has {name}: {value!r}, which is no text; put it in quotes."
            )


def _read(answer: Answer, failure: str) -> Json:
    """Return the object in an answer.

    Raises:
        ClusterError: it is a refusal.
    """
    if answer.status < 400:
        return answer.read_json()
    try:
        reason = answer.read_json()["message"]
    except (orjson.JSONDecodeError, LookupError, TypeError):
        reason = f"HTTP {answer.status}: {answer.body.decode(errors='replace')}"
    raise ClusterError(f"{failure}: {reason}")
