"""The certificates, keys and tokens of one cluster, made for it and gone with it; kubeconfigs.

One authority signs the certificate of the API server and those of its users, as on any
cluster ("PKI certificates and requirements" in the documentation of Kubernetes).
"""

from __future__ import annotations

import base64
import os
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from webop.servers.certificates.certs import KeyPair, build_ca, build_certificate_signed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_SERVER_NAMES = (
    "localhost",
    "127.0.0.1",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
# The group that RBAC lets do everything ("Using RBAC Authorization", user-facing roles).
_ADMIN_GROUP = "system:masters"


@dataclass(frozen=True)
class ServerNames:
    """Whose certificate the API server shows, as those of other clusters differ in that.

    Attributes:
        authority: the common name of the authority, which signs users' certificates, too.
        common_name: the subject of the certificate.
        organizations: the organizations of the subject.
        hostnames: names and addresses of the server, besides the usual ones.
    """

    authority: str = "webop-local-ca"
    common_name: str = "kube-apiserver"
    organizations: Sequence[str] = ()
    hostnames: Sequence[str] = ()


class CredentialFiles:
    """Where the credentials of a cluster are, inside of its folder."""

    def __init__(self, folder: Path) -> None:
        self.ca_cert = folder / "ca.crt"
        self.ca_key = folder / "ca.key"
        self.server_cert = folder / "server.crt"
        self.server_key = folder / "server.key"
        self.service_account_cert = folder / "service-accounts.crt"  # verifies tokens
        self.service_account_key = folder / "service-accounts.key"  # signs them
        self.tokens = folder / "tokens.csv"  # the static ones

    def read_ca(self) -> KeyPair:
        """Read the authority, to sign one more certificate."""
        return KeyPair(cert=self.ca_cert.read_bytes(), key=self.ca_key.read_bytes())

    def read_ca_data(self) -> str:
        """Read the certificate of the authority as kubeconfigs hold it: base64 of PEM."""
        return base64.b64encode(self.ca_cert.read_bytes()).decode()

    def read_token(self) -> str:
        """Read the token of the administrator."""
        return self.tokens.read_text(encoding="ascii").partition(",")[0]


def create_credentials(folder: Path, names: ServerNames) -> CredentialFiles:
    """Make all credentials of a new cluster and write them into its folder."""
    files = CredentialFiles(folder)
    ca = build_ca(names.authority)
    server = build_certificate_signed(
        ca,
        common_name=names.common_name,
        organizations=names.organizations,
        hostnames=[*_SERVER_NAMES, *names.hostnames],
    )
    # Only its keys are used: the private one signs the tokens, the public one verifies them.
    accounts = build_certificate_signed(ca, common_name="service-accounts", client=True)
    for cert, key, pair in (
        (files.ca_cert, files.ca_key, ca),
        (files.server_cert, files.server_key, server),
        (files.service_account_cert, files.service_account_key, accounts),
    ):
        write_private(cert, pair.cert)
        write_private(key, pair.key)
    token = secrets.token_urlsafe(32)
    write_private(files.tokens, f'{token},admin,admin,"{_ADMIN_GROUP}"\n'.encode())
    return files


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only this user can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)


def build_user_fields(ca: KeyPair, user: str, groups: Iterable[str]) -> dict[str, str]:
    """Make a client certificate and return it as the fields of a kubeconfig's user.

    The API server takes the user from the common name and the groups from the organizations
    ("Authenticating", X.509 client certificates).
    """
    pair = build_certificate_signed(ca, common_name=user, organizations=groups, client=True)
    return {
        "client-certificate-data": base64.b64encode(pair.cert).decode(),
        "client-key-data": base64.b64encode(pair.key).decode(),
    }


def build_kubeconfig(
    *, server: str, ca_data: str, context: str, user: str, fields: dict[str, str]
) -> bytes:
    """Write a kubeconfig with one context."""
    cluster = {"server": server, "certificate-authority-data": ca_data}
    place = {"cluster": context, "user": user, "namespace": "default"}
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": context, "cluster": cluster}],
        "users": [{"name": user, "user": fields}],
        "contexts": [{"name": context, "context": place}],
        "current-context": context,
    }
    text: str = yaml.safe_dump(config, sort_keys=False)
    return text.encode()
