"""The certificates, keys and tokens of one cluster, made for it and removed with it.

One CA signs the certificates of the API server and of its users, as on any
cluster ("PKI certificates and requirements" in the documentation of Kubernetes).
"""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from webop.servers.certificates.certs import KeyPair, build_ca, build_certificate_signed

_SERVER_NAMES = (
    "localhost",
    "127.0.0.1",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
# RBAC lets this group do everything ("Using RBAC Authorization", user-facing roles).
_ADMIN_GROUP = "system:masters"


class CredentialFiles:
    """The paths of the credentials in the folder of a cluster."""

    def __init__(self, folder: Path) -> None:
        self.ca_cert = folder / "ca.crt"
        self.ca_key = folder / "ca.key"
        self.server_cert = folder / "server.crt"
        self.server_key = folder / "server.key"
        self.service_account_cert = folder / "service-accounts.crt"  # verifies tokens
        self.service_account_key = folder / "service-accounts.key"  # signs them
        self.tokens = folder / "tokens.csv"  # the static ones

    def read_ca(self) -> KeyPair:
        """Return the CA with its private key."""
        return KeyPair(cert=self.ca_cert.read_bytes(), key=self.ca_key.read_bytes())


def create_credentials(folder: Path) -> None:
    """Create all credentials of a new cluster in its folder."""
    files = CredentialFiles(folder)
    ca = build_ca("webop-local-ca")
    server = build_certificate_signed(ca, common_name="kube-apiserver", hostnames=_SERVER_NAMES)
    # Only the keys are used: the private key signs tokens, the public key verifies them.
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


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only this user can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)


def build_user_fields(ca: KeyPair, user: str, groups: Iterable[str]) -> dict[str, str]:
    """Create a client certificate and return it as fields of a kubeconfig's user.

    The API server takes the user from the common name and the groups from the organizations
    ("Authenticating", X.509 client certificates).
    """
    pair = build_certificate_signed(ca, common_name=user, organizations=groups, client=True)
    return {
        "client-certificate-data": base64.b64encode(pair.cert).decode(),
        "client-key-data": base64.b64encode(pair.key).decode(),
    }
