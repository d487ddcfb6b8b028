"""The command lines of the processes of a cluster. Pure.

See kube-apiserver and kube-controller-manager ("Command line tools reference" in the documentation
of Kubernetes), and etcd ("Configuration options" in its documentation).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .credentials import CredentialFiles

# These make deletions, namespaces and the roles "view", "edit" and "admin" behave as in other
# clusters; none of them runs pods.
_CONTROLLERS = (
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",
    "clusterrole-aggregation-controller",
)

# Relative to the folder of the cluster, because paths of sockets have at most 104 bytes.
_ETCD_SOCKET = "unix://etcd.sock"
_ETCD_PEER_SOCKET = "unix://etcd-peer.sock"


def build_etcd_command(executable: Path) -> list[str]:
    """Build the command line of etcd: sockets in its working folder, no port, no fsync.

    The data need not survive a crash of the machine. Without a port, no process can take it, and
    nothing bypasses the authorization of the API server.
    """
    return [
        str(executable),
        "--name=webop",
        "--data-dir=etcd",
        f"--listen-client-urls={_ETCD_SOCKET}",
        f"--listen-peer-urls={_ETCD_PEER_SOCKET}",
        # These two are unused but must be valid addresses.
        "--advertise-client-urls=http://127.0.0.1:1",
        "--initial-advertise-peer-urls=http://127.0.0.1:2",
        "--initial-cluster=webop=http://127.0.0.1:2",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def build_apiserver_command(
    executable: Path, files: CredentialFiles, port: int, extra: Sequence[str] = ()
) -> list[str]:
    """Build the command line of kube-apiserver."""
    return [
        str(executable),
        f"--etcd-servers={_ETCD_SOCKET}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        "--advertise-address=127.0.0.1",
        # The endpoint of the service "kubernetes" must not be a loopback address: write none.
        "--endpoint-reconciler-type=none",
        "--service-cluster-ip-range=10.0.0.0/24",
        f"--tls-cert-file={files.server_cert}",
        f"--tls-private-key-file={files.server_key}",
        f"--client-ca-file={files.ca_cert}",
        f"--token-auth-file={files.tokens}",
        "--authorization-mode=RBAC",
        f"--service-account-key-file={files.service_account_cert}",
        f"--service-account-signing-key-file={files.service_account_key}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        # As in OpenShift, so that tests find rights that are missing there.
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
        # Without the controller there are no service accounts, and pods could not be created.
        "--disable-admission-plugins=ServiceAccount",
        "--allow-privileged=true",
        *extra,
    ]


def build_controller_manager_command(
    executable: Path, files: CredentialFiles, kubeconfig: Path
) -> list[str]:
    """Build the command line of kube-controller-manager: the controllers above, no port."""
    return [
        str(executable),
        f"--kubeconfig={kubeconfig}",
        f"--controllers={','.join(_CONTROLLERS)}",
        f"--service-account-private-key-file={files.service_account_key}",
        f"--root-ca-file={files.ca_cert}",
        "--leader-elect=false",
        "--secure-port=0",
    ]
