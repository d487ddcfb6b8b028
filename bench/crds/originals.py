"""Which kinds of which projects are written as models here, and where their originals are."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pydantic
import yaml

from bench.model import BenchError
from bench.sides import CACHE

Json = dict[str, Any]


@dataclass(frozen=True)
class Original:
    """A CustomResourceDefinition of a project.

    Args:
        module: of this package, with the model.
        kind: the name of the model.
        repository: on GitHub.
        version: a tag of the repository.
        path: of the definition in the repository.
        because: why the model differs, by what differs.
    """

    module: str
    kind: str
    repository: str
    version: str
    path: str
    because: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def url(self) -> str:
        """The address of the definition."""
        return f"https://raw.githubusercontent.com/{self.repository}/{self.version}/{self.path}"

    @property
    def page(self) -> str:
        """The page of the definition, for people."""
        return f"https://github.com/{self.repository}/blob/{self.version}/{self.path}"

    def load_model(self) -> type[pydantic.BaseModel]:
        """Return the model."""
        module = importlib.import_module(f"bench.crds.{self.module}")
        model: type[pydantic.BaseModel] = getattr(module, self.kind)
        return model


_STORED = "the model is of the stored version; other versions would be other classes"
_MERGED = "a field of type `webop.Conditions` is merged by the types of the conditions"

ORIGINALS = (
    Original(
        *("cert_manager", "Certificate", "cert-manager/cert-manager", "v1.21.1"),
        "deploy/crds/cert-manager.io_certificates.yaml",
    ),
    Original(
        *("prometheus", "ServiceMonitor", "prometheus-operator/prometheus-operator", "v0.93.0"),
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
    ),
    Original(
        *("strimzi", "KafkaUser", "strimzi/strimzi-kafka-operator", "1.2.0"),
        "install/cluster-operator/044-Crd-kafkauser.yaml",
    ),
    Original(
        *("gateway_api", "TLSRoute", "kubernetes-sigs/gateway-api", "v1.6.1"),
        "config/crd/standard/gateway.networking.k8s.io_tlsroutes.yaml",
        {
            "rule in other words": "constants of Python hold what the rules have in common",
            "version": _STORED,
        },
    ),
    Original(
        *("external_secrets", "ExternalSecret", "external-secrets/external-secrets", "v2.9.0"),
        "config/crds/bases/external-secrets.io_externalsecrets.yaml",
        {"version": _STORED},
    ),
    Original(
        *("keda", "ScaledObject", "kedacore/keda", "v2.20.2"),
        "config/crd/bases/keda.sh_scaledobjects.yaml",
    ),
    Original(
        *("metallb", "IPAddressPool", "metallb/metallb", "v0.16.1"),
        "config/crd/bases/metallb.io_ipaddresspools.yaml",
    ),
    Original(
        *("velero", "BackupStorageLocation", "vmware-tanzu/velero", "v1.18.1"),
        "config/crd/v1/bases/velero.io_backupstoragelocations.yaml",
    ),
    Original(
        *("flux", "GitRepository", "fluxcd/source-controller", "v1.9.1"),
        "config/crd/bases/source.toolkit.fluxcd.io_gitrepositories.yaml",
        {"x-kubernetes-list-type": _MERGED, "x-kubernetes-list-map-keys": _MERGED},
    ),
    Original(
        *("cloudnative_pg", "Database", "cloudnative-pg/cloudnative-pg", "v1.30.0"),
        "config/crd/bases/postgresql.cnpg.io_databases.yaml",
    ),
)


def find_original(original: Original, name: str, folder: Path | None) -> Json:
    """Return an original, from the YAML files of a folder, or downloaded once.

    Args:
        original: which one.
        name: of the CustomResourceDefinition, such as "widgets.example.com".
        folder: with YAML files; None to download.
    """
    folder = folder or _download(original)
    for path in sorted(folder.glob("*.y*ml")):
        for document in yaml.safe_load_all(path.read_text()):
            if document and document["kind"] == "CustomResourceDefinition":
                found: Json = document
                if found["metadata"]["name"] == name:
                    return found
    raise BenchError(f"No file in {folder} has the CustomResourceDefinition {name}.")


def _download(original: Original) -> Path:
    folder = CACHE / f"crd-{original.module}-{original.version}"
    path = folder / Path(original.path).name
    if not path.exists():
        try:
            response = httpx.get(original.url, follow_redirects=True, timeout=60)
            response.raise_for_status()
        except httpx.HTTPError as exc:
            text = f"Cannot download {original.url}: {exc!r}. Name a folder with the file instead."
            raise BenchError(text) from exc
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(response.content)
    return folder
