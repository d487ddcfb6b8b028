"""Login functions: kubeconfigs, service accounts, client libraries."""

from __future__ import annotations

import logging
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import yaml

from webop.client.credentials import ConnectionInfo
from webop.client.kubeconfig import (
    get_default_logins,
    login_via_client,
    login_via_pykube,
    login_with_kubeconfig,
    login_with_service_account,
    read_kubeconfig,
    read_service_account,
)
from webop.errors import LoginError

logger = logging.getLogger("test")


def build_config(user: dict[str, Any] | None = None, **cluster: Any) -> dict[str, Any]:
    return {
        "current-context": "ctx",
        "contexts": [
            {"name": "ctx", "context": {"cluster": "cl", "user": "us", "namespace": "ns"}}
        ],
        "clusters": [{"name": "cl", "cluster": {"server": "https://host", **cluster}}],
        "users": [{"name": "us", "user": user or {}}],
    }


def write(path: Path, config: object) -> Path:
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.feature("AUT-08", "AUT-13", "AUT-21", "AUT-22")
@pytest.mark.parametrize(
    ("user", "cluster", "expected"),
    [
        ({}, {}, {}),
        ({"token": "t"}, {}, {"token": "t"}),
        ({"username": "u", "password": "p"}, {}, {"username": "u", "password": "p"}),
        ({"client-certificate": "/c", "client-key": "/k"}, {}, {
            "certificate_path": "/c", "private_key_path": "/k",
        }),
        ({"client-certificate-data": "YQ==", "client-key-data": "Yg=="}, {}, {
            "certificate_data": "YQ==", "private_key_data": "Yg==",
        }),
        ({"client-key-data": "Yg==", "client-key": "/k"}, {}, {"private_key_data": "Yg=="}),
        ({"auth-provider": {"config": {"access-token": "t"}}}, {}, {"token": "t"}),
        ({"exec": {}, "token": "t"}, {}, {"token": "t"}),
        ({}, {"certificate-authority": "/ca"}, {"ca_path": "/ca"}),
        ({}, {"certificate-authority-data": "YQ=="}, {"ca_data": "YQ=="}),
        ({}, {"insecure-skip-tls-verify": True}, {"insecure": True}),
        ({}, {"proxy-url": "http://proxy"}, {"proxy_url": "http://proxy"}),
    ],
)  # fmt: skip
def test_the_current_context_is_taken_literally(
    tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any], expected: dict[str, Any]
) -> None:
    path = write(tmp_path / "config", build_config(user, **cluster))
    info = ConnectionInfo(server="https://host", default_namespace="ns", **expected)
    assert read_kubeconfig([path]) == info


@pytest.mark.feature("AUT-22")
def test_several_files_are_merged_and_the_first_one_wins(tmp_path: Path) -> None:
    first = write(tmp_path / "1", {"current-context": "ctx", "clusters": [
        {"name": "cl", "cluster": {"server": "https://first"}},
    ]})  # fmt: skip
    second = write(tmp_path / "2", {**build_config({"token": "2"}), "current-context": "other"})
    info = read_kubeconfig([tmp_path / "absent", first, second])
    assert (info.server, info.token) == ("https://first", "2")


def test_relative_paths_start_from_their_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    user = {"tokenFile": "token", "client-certificate": "certs/c.pem"}
    info = read_kubeconfig([write(tmp_path / "config", build_config(user))])
    assert info.token == "from-file"
    assert info.certificate_path == str(tmp_path / "certs/c.pem")


def test_a_context_can_have_no_user(tmp_path: Path) -> None:
    config = build_config()
    config["contexts"][0]["context"].pop("user")
    assert read_kubeconfig([write(tmp_path / "config", config)]).token is None


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "no current context"),
        (None, "no current context"),
        (["x"], "not a kubeconfig"),
        ({"users": ["x"]}, "not a kubeconfig"),
        ({"users": [{"user": 1}]}, "not a kubeconfig"),
        ({**build_config(), "current-context": "x"}, "no context 'x'"),
        ({**build_config(), "clusters": []}, "no cluster 'cl'"),
        ({**build_config(), "users": None}, "no user 'us'"),
        (build_config(server=""), "'cl' has no server"),
        (build_config({"exec": {"command": "aws"}}), "pip install"),
    ],
)
def test_an_unusable_kubeconfig_is_explained(tmp_path: Path, config: Any, reason: str) -> None:
    path = write(tmp_path / "config", config)
    with pytest.raises(LoginError, match=reason) as e:
        read_kubeconfig([path])
    assert str(tmp_path) in str(e.value)


def test_a_file_that_is_no_yaml_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("{")
    with pytest.raises(LoginError, match="cannot be read"):
        read_kubeconfig([path])


@pytest.mark.feature("AUT-22", "REF-18")
def test_the_kubeconfig_is_found_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert login_with_kubeconfig(logger=logger) is None

    (tmp_path / ".kube").mkdir()
    write(tmp_path / ".kube/config", build_config({"token": "home"}))
    assert login_with_kubeconfig().token == "home"  # type: ignore[union-attr]

    path = write(tmp_path / "other", build_config({"token": "other"}))
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([str(tmp_path / "absent"), str(path)]))
    assert login_with_kubeconfig().token == "other"  # type: ignore[union-attr]

    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(LoginError, match=r"no kubeconfig at .*absent"):
        login_with_kubeconfig()


@pytest.mark.feature("AUT-09", "AUT-23")
@pytest.mark.parametrize(
    ("environ", "server"),
    [
        ({}, "https://kubernetes.default.svc"),
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"},
            "https://10.0.0.1:6443",
        ),
        ({"KUBERNETES_SERVICE_HOST": "fd00::1"}, "https://[fd00::1]:443"),
    ],
)
def test_a_service_account_is_read_from_its_files(
    tmp_path: Path, environ: dict[str, str], server: str
) -> None:
    assert read_service_account(tmp_path, environ) is None
    (tmp_path / "token").write_text("t\n")
    assert read_service_account(tmp_path, environ) == ConnectionInfo(server=server, token="t")
    (tmp_path / "ca.crt").write_text("x")
    (tmp_path / "namespace").write_text("ns\n")
    assert read_service_account(tmp_path, environ) == ConnectionInfo(
        server=server, token="t", ca_path=tmp_path / "ca.crt", default_namespace="ns"
    )


@pytest.mark.feature("AUT-10")
def test_the_functions_combine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "config", build_config({"token": "t"}))
    monkeypatch.setenv("KUBECONFIG", str(path))
    kwargs = {"logger": logger, "memo": object()}
    info = login_with_service_account(**kwargs) or login_with_kubeconfig(**kwargs)
    assert info is not None
    assert info.token == "t"


@pytest.mark.feature("AUT-06", "AUT-07", "REF-17")
def test_libraries_that_are_not_installed_bring_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pykube", None)
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    monkeypatch.setitem(sys.modules, "kubernetes.config", None)
    assert login_via_pykube(logger=logger) is None
    assert login_via_client(logger=logger) is None


@pytest.mark.feature("AUT-01", "AUT-02")
def test_the_default_logins_depend_on_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = {"pykube": login_via_pykube, "kubernetes": login_via_client}
    for name in libraries:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    sys.path_importer_cache.clear()
    assert get_default_logins() == (login_with_service_account, login_with_kubeconfig)
    for name in reversed(libraries):
        (tmp_path / f"{name}.py").touch()
        sys.path_importer_cache.clear()
        assert libraries[name] in get_default_logins()
    assert get_default_logins() == (login_via_pykube, login_via_client)


class FakeConfigurationError(Exception):
    pass


@pytest.mark.feature("AUT-01", "AUT-07")
@pytest.mark.parametrize(
    ("keys", "scheme", "token"),
    [
        ({"authorization": "Bearer t"}, "Bearer", "t"),
        ({"BearerToken": "t"}, None, "t"),
        ({"BearerToken": "Bearer new", "authorization": "Bearer old"}, "Bearer", "new"),
        ({}, None, None),
    ],
)
def test_the_client_library_is_asked_for_its_token(
    monkeypatch: pytest.MonkeyPatch, keys: dict[str, str], scheme: str | None, token: str | None
) -> None:
    def refuse() -> None:
        raise FakeConfigurationError

    loaded: list[str] = []
    configuration = types.SimpleNamespace(
        host="https://host",
        ssl_ca_cert="/ca",
        verify_ssl=True,
        username="",
        password="",
        cert_file=None,
        key_file=None,
        get_api_key_with_prefix=keys.get,
    )
    library: Any = types.ModuleType("kubernetes")
    library.config = types.ModuleType("kubernetes.config")
    library.config.ConfigException = FakeConfigurationError
    library.config.load_incluster_config = refuse
    library.config.load_kube_config = lambda: loaded.append("kubeconfig")
    library.client = types.SimpleNamespace(
        Configuration=types.SimpleNamespace(get_default_copy=lambda: configuration)
    )
    monkeypatch.setitem(sys.modules, "kubernetes", library)
    monkeypatch.setitem(sys.modules, "kubernetes.config", library.config)

    info = login_via_client(logger=logger)
    assert loaded == ["kubeconfig"]
    assert info == ConnectionInfo(
        server="https://host", ca_path="/ca", insecure=False, scheme=scheme, token=token
    )

    library.config.load_kube_config = refuse
    with pytest.raises(LoginError, match="neither"):
        login_via_client(logger=logger)


@pytest.mark.feature("AUT-01", "AUT-06")
def test_pykube_is_asked_for_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise FileNotFoundError

    config = types.SimpleNamespace(
        cluster={"server": "https://host", "insecure-skip-tls-verify": True},
        user={
            "client-certificate": types.SimpleNamespace(filename=lambda: "/c"),
            "client-key": types.SimpleNamespace(filename=lambda: "/k"),
            "auth-provider": {"config": {}},
        },
        namespace="ns",
    )

    class FakeHTTPClient:
        def __init__(self, config: Any) -> None:
            self.config = config

        def get(self, **kwargs: Any) -> None:
            assert kwargs == {"version": "", "base": "/"}
            self.config.user["auth-provider"]["config"]["access-token"] = "renewed"

    library: Any = types.ModuleType("pykube")
    library.PyKubeError = FakeConfigurationError
    library.HTTPClient = FakeHTTPClient
    library.KubeConfig = types.SimpleNamespace(
        from_service_account=refuse, from_file=lambda: config
    )
    monkeypatch.setitem(sys.modules, "pykube", library)
    assert login_via_pykube(logger=logger) == ConnectionInfo(
        server="https://host",
        insecure=True,
        token="renewed",
        certificate_path="/c",
        private_key_path="/k",
        default_namespace="ns",
    )
    config.user = {"exec": {"command": "aws"}}
    assert login_via_pykube(logger=logger) is None

    library.KubeConfig.from_file = refuse
    with pytest.raises(LoginError, match="neither"):
        login_via_pykube(logger=logger)
