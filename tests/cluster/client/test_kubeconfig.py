"""Kubeconfigs: merged, resolved and checked, with what is wrong with them."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

import webop
from tests.kit.exec_plugins import build_kubeconfig, build_token
from tests.kit.rows import rows
from webop.client.auth.kubeconfig import read_kubeconfig
from webop.client.standalone import connect_command
from webop.servers.certificates.certs import build_ca, build_certificate_signed
from webop.testing import LocalCluster

PEM = "-----BEGIN WHATEVER-----\n"
DATA = base64.b64encode(PEM.encode()).decode()


def write(path: Path, config: object) -> Path:
    path.write_text(json.dumps(config))
    return path


def build_expired_pair() -> dict[str, str]:
    """Return the fields of a user whose certificate is not valid any more."""
    pair = build_certificate_signed(build_ca("ca"), common_name="x", client=True, days=-1 / 86400)
    return {
        "client-certificate-data": base64.b64encode(pair.cert).decode(),
        "client-key-data": base64.b64encode(pair.key).decode(),
    }


@pytest.mark.feature("AUT-08", "AUT-13", "AUT-21", "AUT-22")
@pytest.mark.parametrize(
    ("user", "cluster", "expected"),
    [
        ({}, {}, {}),
        ({"token": "t"}, {}, {"token": "t"}),
        ({"username": "u", "password": "p"}, {}, {"username": "u", "password": "p"}),
        ({"client-certificate": "c.pem", "client-key": "k.pem"}, {}, {
            "certificate_path": "{}/c.pem", "private_key_path": "{}/k.pem",
        }),
        ({"client-certificate-data": DATA, "client-key-data": DATA}, {}, {
            "certificate_data": DATA, "private_key_data": DATA,
        }),
        ({"client-key-data": DATA, "client-key": "/k"}, {}, {"private_key_data": DATA}),
        ({"auth-provider": {"config": {"access-token": "t"}}}, {}, {"token": "t"}),
        ({}, {"certificate-authority": "c.pem"}, {"ca_path": "{}/c.pem"}),
        ({}, {"certificate-authority-data": DATA}, {"ca_data": DATA}),
        ({}, {"insecure-skip-tls-verify": True}, {"insecure": True}),
        ({}, {"proxy-url": "http://proxy"}, {"proxy_url": "http://proxy"}),
    ],
)  # fmt: skip
def test_the_current_context_is_taken_literally(
    tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any], expected: dict[str, Any]
) -> None:
    for name in ("c.pem", "k.pem"):
        (tmp_path / name).write_text(PEM)
    path = write(tmp_path / "config", build_kubeconfig(user, **cluster))
    values: Any = {k: v.format(tmp_path) if isinstance(v, str) else v for k, v in expected.items()}
    info = webop.ConnectionInfo(server="https://host", default_namespace="ns", **values)
    assert read_kubeconfig([path]) == info


@pytest.mark.feature("AUT-22")
def test_several_files_are_merged_and_the_first_one_wins(tmp_path: Path) -> None:
    first = write(tmp_path / "1", {"current-context": "ctx", "clusters": [
        {"name": "cl", "cluster": {"server": "https://first"}},
    ]})  # fmt: skip
    second = write(tmp_path / "2", {**build_kubeconfig({"token": "2"}), "current-context": "other"})
    info = read_kubeconfig([tmp_path / "absent", first, second])
    assert (info.server, info.token) == ("https://first", "2")


def test_relative_paths_start_from_their_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    (tmp_path / "certs").mkdir()
    (tmp_path / "certs/c.pem").write_text(PEM)
    user = {"tokenFile": "token", "client-certificate": "certs/c.pem", "token": "older"}
    info = read_kubeconfig([write(tmp_path / "config", build_kubeconfig(user))])
    assert info.token == "from-file"
    assert info.certificate_path == str(tmp_path / "certs/c.pem")


@pytest.mark.feature("AUT-14")
def test_a_token_file_is_read_again_before_the_end_of_the_token(tmp_path: Path) -> None:
    now = int(time.time())
    (tmp_path / "token").write_text(build_token({"iat": now, "exp": now + 3600}))
    info = read_kubeconfig([write(tmp_path / "c", build_kubeconfig({"tokenFile": "token"}))])
    assert info.expires_at == now + 3540


async def test_the_name_of_the_server_and_the_account_to_act_as_are_those_of_the_kubeconfig(
    webop_cluster: LocalCluster, tmp_path: Path
) -> None:
    config = yaml.safe_load(webop_cluster.kubeconfig.read_text())
    user, cluster = config["users"][0]["user"], config["clusters"][0]["cluster"]
    account = {"as": "jane", "as-uid": "7", "as-groups": ["a", "b"]}
    user |= {**account, "as-user-extra": {"example.com/Why": ["x", "y"]}}
    async with connect_command(info=read_kubeconfig([write(tmp_path / "c", config)])) as client:
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        found = (await client.request("POST", path, body=review))["status"]["userInfo"]
        with pytest.raises(webop.APIForbiddenError, match='User "jane" cannot list'):
            await client.request("GET", "/api/v1/secrets")
    assert (found["username"], found["uid"]) == ("jane", "7")
    assert found["groups"] == ["a", "b", "system:authenticated"]
    assert found["extra"] == {"example.com/why": ["x", "y"]}
    cluster["tls-server-name"] = "other.example.com"
    async with connect_command(info=read_kubeconfig([write(tmp_path / "c", config)])) as client:
        with pytest.raises(webop.APIConnectionError, match=r"not valid for 'other\.example\.com'"):
            await client.request("GET", "/version")


@rows(
    ("field", "value"),
    [
        *(("insecure-skip-tls-verify", "false"), ("insecure-skip-tls-verify", 1)),
        *(("server", 6443), ("proxy-url", {"a": "b"}), ("certificate-authority-data", 5)),
        *(("token", 5), ("password", 123456), ("username", True), ("as-groups", "x")),
        *(("client-key", {}), ("exec", ["x"]), ("auth-provider", {"config": []})),
    ],
)
def test_a_field_of_another_type_is_refused(tmp_path: Path, field: str, value: Any) -> None:
    config = build_kubeconfig({"token": "t", field: value}, **{field: value})
    with pytest.raises(
        webop.LoginError, match=r"The [\w-]+ of the cluster 'cl' in .* must be .*, got "
    ):
        read_kubeconfig([write(tmp_path / "config", config)])
    config = build_kubeconfig({"token": "t", field: value})
    with pytest.raises(
        webop.LoginError, match=r"The [\w-]+ of the user 'us' in .* must be .*, got "
    ):
        read_kubeconfig([write(tmp_path / "config", config)])


def test_a_context_can_have_no_user(tmp_path: Path) -> None:
    config = build_kubeconfig()
    config["contexts"][0]["context"].pop("user")
    assert read_kubeconfig([write(tmp_path / "config", config)]).token is None


@rows(
    ("config", "reason"),
    [
        ({}, "no current context.*known: none"),
        ({**build_kubeconfig(), "current-context": ""}, "known: ctx"),
        (["x"], "not a kubeconfig.*got list"),
        ({"users": ["x"]}, "not a kubeconfig.*users"),
        ({"current-context": ["x"]}, "current-context.*must be a string"),
        ({**build_kubeconfig(), "current-context": "x"}, r"no context 'x'.*Known: ctx\."),
        ({**build_kubeconfig(), "clusters": []}, "no cluster 'cl'.*Known: none"),
        ({**build_kubeconfig(), "users": None}, "no user 'us'"),
        (build_kubeconfig(server=""), "The cluster 'cl'.*has no server"),
        (build_kubeconfig(server="host:6443"), "'host:6443' of the cluster 'cl'.*https://host"),
        (build_kubeconfig(server="https://"), "not a URL"),
        (build_kubeconfig(server=6443), "server of the cluster.*must be a string, got int"),
        (build_kubeconfig({"exec": {"command": "aws"}}), "plugin of the user 'us'.*apiVersion"),
        (build_kubeconfig({"tokenFile": "gone"}), "tokenFile .*gone of the user.*No such"),
        (build_kubeconfig({"client-certificate": "gone"}), "gone, the client-cert.*No such"),
        (build_kubeconfig({"client-key": "config"}), "client-key of the user.*is not PEM"),
        (build_kubeconfig({"client-key-data": "?"}), "client-key-data of the user.*PEM|base64"),
        (build_kubeconfig({"client-key-data": "YQ=="}), "not PEM in base64. Use client-key for"),
        (build_kubeconfig({}, **{"certificate-authority": "gone"}), "authority of the cluster"),
        (build_kubeconfig(build_expired_pair()), "certificate of the user 'us'.*expired.*Renew"),
        (b"{", "is not YAML.*line 1"),
        (b"a: b: c", "is not YAML.*line 1, column 5"),
        (b"\xff\xfe", "cannot be read.*utf-8"),
        (b"[" * 1000, "is not YAML"),
    ],
)  # fmt: skip
def test_an_unusable_kubeconfig_is_explained(tmp_path: Path, config: Any, reason: str) -> None:
    path = tmp_path / "config"
    path.write_bytes(config) if isinstance(config, bytes) else write(path, config)
    with pytest.raises(webop.LoginError, match=reason) as e:
        read_kubeconfig([path])
    assert str(path) in str(e.value)
    assert "\n" not in str(e.value)


def test_what_may_not_be_read_is_told_rather_than_skipped(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(webop.LoginError, match="loop cannot be read: Too many levels"):
        read_kubeconfig([tmp_path / "absent", tmp_path / "absent" / "x", loop])
    with pytest.raises(webop.LoginError, match="cannot be read: Is a directory"):
        read_kubeconfig([tmp_path])
