"""Login functions that ask the client libraries, real ones and such as other versions are."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import logging
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from tests.cluster.client.test_kubeconfig import build_expired_pair
from tests.kit.exec_plugins import PluginFolder, build_kubeconfig, build_token
from tests.kit.rows import rows
from webop import ConnectionInfo
from webop.client.auth.logins import (
    get_default_logins,
    login_via_async_client,
    login_via_client,
    login_via_pykube,
    login_with_kubeconfig,
    login_with_service_account,
)
from webop.errors import LoginError

pytestmark = pytest.mark.usefixtures("nowhere")

logger = logging.getLogger("test")

FAR = dt.datetime(2999, 1, 1, tzinfo=dt.UTC)


def log_in_async(**kwargs: Any) -> ConnectionInfo | None:
    return asyncio.run(login_via_async_client(**kwargs))


@pytest.mark.feature("AUT-06", "AUT-07", "REF-17")
def test_libraries_that_are_not_installed_bring_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pykube", None)
    assert login_via_pykube(logger=logger) is None
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    monkeypatch.setitem(sys.modules, "kubernetes.config", None)
    assert login_via_client(logger=logger) is None
    monkeypatch.setitem(sys.modules, "kubernetes_asyncio", None)
    monkeypatch.setitem(sys.modules, "kubernetes_asyncio.config", None)
    assert log_in_async(logger=logger) is None


@pytest.mark.feature("AUT-01", "AUT-02")
def test_the_default_logins_depend_on_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = {"pykube": login_via_pykube, "kubernetes": login_via_client}
    for name in (*libraries, "kubernetes_asyncio"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    sys.path_importer_cache.clear()
    assert get_default_logins() == (login_with_service_account, login_with_kubeconfig)
    for name in reversed(libraries):
        (tmp_path / f"{name}.py").touch()
        sys.path_importer_cache.clear()
        assert libraries[name] in get_default_logins()
    assert get_default_logins() == (login_via_pykube, login_via_client)
    (tmp_path / "kubernetes.py").rename(tmp_path / "kubernetes_asyncio.py")
    sys.path_importer_cache.clear()
    assert len(get_default_logins()) == 2
    assert login_via_client not in get_default_logins()


class FakeConfigurationError(Exception):
    pass


@pytest.mark.feature("AUT-01", "AUT-07")
@pytest.mark.parametrize(
    ("keys", "scheme", "token"),
    [
        ({"authorization": "Bearer t"}, "Bearer", "t"),
        ({"BearerToken": "t"}, None, "t"),
        ({"BearerToken": "Bearer new", "authorization": "Bearer old"}, "Bearer", "new"),
        ({}, None, "own"),
    ],
)
def test_the_client_library_is_asked_for_its_token(
    plugin: PluginFolder,
    monkeypatch: pytest.MonkeyPatch,
    keys: dict[str, str],
    scheme: str | None,
    token: str | None,
) -> None:
    plugin.kubeconfig.write_text(json.dumps(build_kubeconfig({"token": "own"})))

    def refuse(**_: Any) -> None:
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
    library.config.load_kube_config = lambda **kw: loaded.append(kw["config_file"])
    library.client = types.SimpleNamespace(
        Configuration=types.SimpleNamespace(get_default_copy=lambda: configuration)
    )
    monkeypatch.setitem(sys.modules, "kubernetes", library)
    monkeypatch.setitem(sys.modules, "kubernetes.config", library.config)

    info = login_via_client(logger=logger)
    assert loaded == [str(plugin.kubeconfig)]
    assert info is not None
    assert (info.scheme, info.token) == (scheme, token)

    library.config.load_kube_config = refuse
    assert login_via_client(logger=logger) == login_with_kubeconfig()


Login = Callable[..., ConnectionInfo]

LIBRARIES = {
    "pykube": login_via_pykube,
    "kubernetes": login_via_client,
    "kubernetes_asyncio": log_in_async,
}


@pytest.fixture(params=LIBRARIES)
def login(request: pytest.FixtureRequest) -> Login:
    """The login function of a real library."""
    pytest.importorskip(request.param)
    return cast("Login", LIBRARIES[request.param])


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginFolder:
    folder = PluginFolder(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(folder.kubeconfig))
    return folder


@pytest.mark.feature("AUT-01", "AUT-06", "AUT-07")
def test_an_exec_plugin_is_run_once_a_login(plugin: PluginFolder, login: Login) -> None:
    plugin.write_answer(token="t")
    plugin.write_kubeconfig()
    assert login(logger=logger).authorization == "Bearer t"
    plugin.write_answer(token="t2")
    assert (login(logger=logger).token, plugin.runs) == ("t2", 2)
    plugin.write_script("echo 'session expired' >&2", "exit 3")
    with pytest.raises(LoginError, match="exit code 3: session expired"):
        login(logger=logger)


def test_a_library_does_not_quote_the_kubeconfig_in_the_log(
    plugin: PluginFolder, login: Login, caplog: pytest.LogCaptureFixture
) -> None:
    plugin.write_kubeconfig(env={"PASSWORD": "hidden"})
    with pytest.raises(LoginError, match="its env is not a list"):
        login(logger=logger)
    assert "hidden" not in caplog.text


@rows(
    ("config", "expected"),
    [
        (
            build_kubeconfig({"token": "t"}, **{"insecure-skip-tls-verify": "false"}),
            "must be true or false, without quotes",
        ),
        (build_kubeconfig({"token": "t"}, server="host:6443"), "is not a URL"),
        (
            build_kubeconfig({"token": "t"}, **{"proxy-url": "socks5://a:1"}),
            r"'socks5://a:1' of the cluster 'cl'.* SOCKS, are not",
        ),
        (build_kubeconfig(build_expired_pair()), r"client certificate.*expired at 20.*Renew"),
        ("{", "is not YAML"),
        ("[]", "is not a kubeconfig"),
        ("current-context: x", "no context 'x'"),
    ],
)
def test_what_a_library_ignores_or_misunderstands_or_fails_with_is_refused(
    plugin: PluginFolder, login: Login, config: Any, expected: str
) -> None:
    plugin.kubeconfig.write_text(config if isinstance(config, str) else json.dumps(config))
    with pytest.raises(LoginError, match=expected) as e:
        login(logger=logger)
    assert isinstance(config, dict) or str(plugin.kubeconfig) in str(e.value)


def test_what_a_library_leaves_out_of_kubeconfigs_is_used_whichever_library_reads_them(
    plugin: PluginFolder, login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = {"proxy-url": "http://a:1", "tls-server-name": "other"}
    token = build_token({"exp": FAR.timestamp()})
    user = {"token": token, "as": "jane", "as-groups": ["a"]}
    plugin.kubeconfig.write_text(json.dumps(build_kubeconfig(user, **cluster)))
    monkeypatch.setenv("KUBECONFIG", f"{plugin.folder / 'absent'}:{plugin.kubeconfig}")
    info = login(logger=logger)
    assert (info.token, info.expiration) == (token, FAR)
    assert (info.proxy_url, info.tls_server_name) == ("http://a:1", "other")
    assert info.headers == (("Impersonate-User", "jane"), ("Impersonate-Group", "a"))


def test_without_any_source_a_library_has_nothing_to_bring(login: Login) -> None:
    with pytest.raises(LoginError, match=r"no kubeconfig.*no service account"):
        login(logger=logger)
