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


@dataclass(frozen=True)
class CredentialFiles:
    """Where the credentials of a cluster are, inside of its folder."""

    folder: Path

    @property
    def ca_cert(self) -> Path:
        """The certificate of the authority."""
        return self.folder / "ca.crt"

    @property
    def ca_key(self) -> Path:
        """The key of the authority."""
        return self.folder / "ca.key"

    @property
    def server_cert(self) -> Path:
        """The certificate of the API server."""
        return self.folder / "server.crt"

    @property
    def server_key(self) -> Path:
        """The key of the API server."""
        return self.folder / "server.key"

    @property
    def service_account_cert(self) -> Path:
        """The certificate of the next key: what verifies tokens."""
        return self.folder / "service-accounts.crt"

    @property
    def service_account_key(self) -> Path:
        """The key that signs the tokens of service accounts."""
        return self.folder / "service-accounts.key"

    @property
    def tokens(self) -> Path:
        """The static tokens that the API server accepts."""
        return self.folder / "tokens.csv"

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
    write_private(files.ca_cert, ca.cert)
    write_private(files.ca_key, ca.key)
    write_private(files.server_cert, server.cert)
    write_private(files.server_key, server.key)
    write_private(files.service_account_cert, accounts.cert)
    write_private(files.service_account_key, accounts.key)
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
    """Write a kubeconfig with one context.

    Args:
        server: the URL of the API server.
        ca_data: the certificate of the authority, base64 of PEM.
        context: the name of the context and of the cluster.
        user: the name of the user's entry.
        fields: what identifies the user, such as "token".
    """
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": context, "cluster": {"server": server, "certificate-authority-data": ca_data}}
        ],
        "users": [{"name": user, "user": fields}],
        "contexts": [
            {"name": context, "context": {"cluster": context, "user": user, "namespace": "default"}}
        ],
        "current-context": context,
    }
    text: str = yaml.safe_dump(config, sort_keys=False)
    return text.encode()
