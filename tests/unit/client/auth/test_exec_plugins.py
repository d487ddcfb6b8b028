"""Exec plugins: how they are run, what they may answer, how they fail."""

from __future__ import annotations

import datetime as dt
import json
import os
import pty
import time
from pathlib import Path
from typing import Any

import pytest

from tests.kit.exec_plugins import V1, V1BETA1, PluginFolder, is_running
from tests.kit.rows import rows
from tests.kit.waiting import wait_until
from webop import ConnectionInfo
from webop.client.auth.exec_plugins import parse_plugin
from webop.client.auth.kubeconfig import read_kubeconfig
from webop.errors import LoginError
from webop.servers.certificates.certs import build_ca, build_certificate_signed

OWNER = "the user 'us' in config"
CREDENTIAL = {"kind": "ExecCredential", "apiVersion": V1}


@pytest.fixture
def plugin(tmp_path: Path) -> PluginFolder:
    return PluginFolder(tmp_path)


def fetch(plugin: PluginFolder, **config: Any) -> dict[str, Any]:
    command = str(plugin.folder / "plugin.sh")
    described = {"apiVersion": V1, "command": command, "interactiveMode": "Never", **config}
    return parse_plugin(described, owner=OWNER, cluster={"server": "https://host"}).fetch()


@pytest.mark.feature("AUT-08")
@pytest.mark.parametrize("version", [V1, V1BETA1])
def test_a_plugin_brings_a_token_with_its_expiration(plugin: PluginFolder, version: str) -> None:
    plugin.write_answer(version=version, token="t", expirationTimestamp="2999-01-01T00:00:00Z")
    path = plugin.write_kubeconfig(apiVersion=version)
    assert read_kubeconfig([path]) == ConnectionInfo(
        server="https://host",
        token="t",
        default_namespace="ns",
        expiration=dt.datetime(2999, 1, 1, tzinfo=dt.UTC),
    )


def test_a_plugin_brings_a_certificate_with_its_key(plugin: PluginFolder) -> None:
    pair = build_certificate_signed(build_ca("ca"), common_name="x", client=True, days=1)
    cert, key = pair.cert.decode(), pair.key.decode()
    plugin.write_answer(clientCertificateData=cert, clientKeyData=key)
    info = read_kubeconfig([plugin.write_kubeconfig()])
    assert (info.certificate_data, info.private_key_data, info.token) == (cert, key, None)
    assert 0 < info.expires_at - time.time() < 24 * 3600 + 1


def test_a_plugin_is_told_by_its_arguments_and_its_environment(
    plugin: PluginFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.write_script(
        f'printf "%s|%s|%s|%s" "$1" "$2" "$MINE" "$INHERITED" > {plugin.folder}/told',
        f'echo "$KUBERNETES_EXEC_INFO" > {plugin.folder}/info',
        f"cat {plugin.folder}/answer",
    )
    plugin.write_answer(token="t")
    monkeypatch.setenv("INHERITED", "there")
    ca_path = plugin.folder / "ca.pem"
    ca_path.write_bytes(build_ca("ca").cert)
    own = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}
    extensions = [{"name": "other", "extension": {}}, own]
    cluster = {"certificate-authority": "ca.pem", "extensions": extensions}
    options = {"args": ["get-token", "5"], "env": [{"name": "MINE", "value": "1"}]}
    path = plugin.write_kubeconfig(cluster, **options, provideClusterInfo=True)
    assert read_kubeconfig([path]).ca_path == str(ca_path)
    assert (plugin.folder / "told").read_text() == "get-token|5|1|there"
    told = json.loads((plugin.folder / "info").read_text())
    data = told["spec"]["cluster"].pop("certificate-authority-data")
    assert data.startswith("LS0tLS1CRUdJTi")
    shown = {"server": "https://host", "config": {"audience": "a"}}
    assert told == {**CREDENTIAL, "spec": {"interactive": False, "cluster": shown}}


def test_a_plain_name_of_a_plugin_is_found_by_the_path(
    plugin: PluginFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{plugin.folder}{os.pathsep}{os.environ['PATH']}")
    plugin.write_answer(token="t")
    assert read_kubeconfig([plugin.write_kubeconfig(command="plugin.sh")]).token == "t"


@pytest.mark.parametrize(
    ("mode", "is_interactive"), [("IfAvailable", True), ("Always", True), ("Never", False)]
)
def test_a_plugin_may_ask_at_the_terminal_if_it_wants_to_and_there_is_one(
    plugin: PluginFolder, monkeypatch: pytest.MonkeyPatch, mode: str, is_interactive: bool
) -> None:
    plugin.write_script(
        f'echo "$KUBERNETES_EXEC_INFO" > {plugin.folder}/info', f"cat {plugin.folder}/answer"
    )
    plugin.write_answer(token="t")
    ends = pty.openpty()
    with os.fdopen(ends[0], "rb"), os.fdopen(ends[1], "r") as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        assert fetch(plugin, interactiveMode=mode)["token"] == "t"
    told = json.loads((plugin.folder / "info").read_text())
    assert told["spec"]["interactive"] is is_interactive


@pytest.mark.parametrize("script", ["yes", "yes >&2"])
def test_a_plugin_that_prints_without_end_does_not_fill_the_memory(
    plugin: PluginFolder, script: str
) -> None:
    plugin.write_script(script)
    with pytest.raises(LoginError, match=r"plugin.sh.* printed more than 4 MiB and was stopped"):
        fetch(plugin)


def test_a_plugin_that_hangs_is_stopped_with_all_that_it_has_started(plugin: PluginFolder) -> None:
    plugin.write_script("sleep 300 &", f"echo $! > {plugin.folder}/pid", "wait")
    described = {"apiVersion": V1, "command": str(plugin.folder / "plugin.sh")}
    hanging = parse_plugin(described, owner=OWNER, cluster={})
    with pytest.raises(LoginError, match=r"plugin\.sh.*did not finish in 0\.5 s"):
        hanging.fetch(time_limit=0.5)
    child = int((plugin.folder / "pid").read_text())
    wait_until(lambda: not is_running(child))


PAST = "2020-01-01T00:00:00Z"


def credential(**status: Any) -> dict[str, Any]:
    return {**CREDENTIAL, "status": status}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("oops", "4 characters that are not JSON"),
        ("[" * 100_000, "that are not JSON"),
        ({"kind": "Secret", "apiVersion": V1}, "not an ExecCredential"),
        ({**CREDENTIAL, "apiVersion": V1BETA1}, r"v1beta1.*says.*v1'\. Update"),
        (CREDENTIAL, "without a status"),
        (credential(), r"neither.*\(none\)"),
        (credential(clientKeyData="k"), "neither a token nor a certificate.*clientKeyData"),
        (credential(token="t", expirationTimestamp="never"), "invalid expira.*such as 2030"),
        (credential(token="t", expirationTimestamp=PAST), f"expired at {PAST}.*clock"),
    ],
)
def test_an_answer_that_is_of_no_use_is_explained(
    plugin: PluginFolder, answer: object, expected: str
) -> None:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    (plugin.folder / "answer").write_text(text)
    plugin.write_script(f"cat {plugin.folder}/answer")
    with pytest.raises(LoginError, match=expected) as e:
        fetch(plugin)
    assert "plugin.sh' of the user 'us' in config" in str(e.value)
    assert "\n" not in str(e.value)


def test_what_a_failing_plugin_complains_about_is_told_in_one_line(plugin: PluginFolder) -> None:
    plugin.write_script("echo 'session expired' >&2", "echo 'run: aws sso login' >&2", "exit 7")
    with pytest.raises(LoginError, match=r"exit code 7: session expired run: aws sso login$"):
        fetch(plugin)
    plugin.write_script("exit 1")
    with pytest.raises(LoginError, match="exit code 1: it printed no reason"):
        fetch(plugin)
    plugin.write_script("yes | head -c 5000 >&2", "exit 1")
    with pytest.raises(LoginError, match=r"\.\.\.$") as e:
        fetch(plugin)
    assert len(str(e.value)) < 1000


def test_a_plugin_that_is_not_installed_is_told_with_the_hint() -> None:
    described = {"apiVersion": V1, "command": "no-such-plugin"}
    with pytest.raises(LoginError, match=r"'no-such-plugin'.*No such file.*Install it"):
        parse_plugin(described, owner=OWNER, cluster={}).fetch()
    described["installHint"] = "Get it from example.com."
    with pytest.raises(LoginError, match=r"Get it from example.com\.$"):
        parse_plugin(described, owner=OWNER, cluster={}).fetch()


@rows(
    ("config", "expected"),
    [
        ("aws", "not a mapping"),
        ({"command": 5}, "no command"),
        ({"command": "x"}, "apiVersion is None"),
        ({"command": "x", "apiVersion": "client.authentication.k8s.io/v1alpha1"}, "v1alpha1"),
        ({"command": "x", "apiVersion": V1, "interactiveMode": "Maybe"}, "'Maybe'.*Never"),
        ({"command": "x", "apiVersion": V1, "args": "get-token"}, "args are not a list"),
        ({"command": "x", "apiVersion": V1, "env": {"A": "1"}}, "env is not a list"),
        ({"command": "x", "apiVersion": V1, "env": [{"value": "1"}]}, "env is not a list"),
        ({"command": "x", "apiVersion": V1, "env": [{"name": "A", "value": 1}]}, "all of them str"),
        ({"command": "x", "apiVersion": V1, "installHint": ["x"]}, "installHint is not a string"),
        ({"command": "x", "apiVersion": V1, "provideClusterInfo": "false"}, "not true or false"),
    ],
)
def test_a_wrong_description_of_a_plugin_is_explained(config: Any, expected: str) -> None:
    with pytest.raises(LoginError, match=f"of {OWNER} cannot be used.*{expected}"):
        parse_plugin(config, owner=OWNER, cluster={})
