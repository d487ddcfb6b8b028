"""Login functions that need no client library: service accounts and kubeconfigs."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import time
from pathlib import Path

import pytest

from tests.kit.exec_plugins import build_kubeconfig, build_token
from webop import ConnectionInfo
from webop.client.auth.logins import (
    login_with_kubeconfig,
    login_with_service_account,
    read_service_account,
)
from webop.errors import LoginError

logger = logging.getLogger("test")


def write(path: Path, config: object) -> Path:
    path.write_text(json.dumps(config))
    return path


@pytest.mark.feature("AUT-10", "AUT-22", "REF-18")
def test_the_kubeconfig_is_found_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def log_in() -> str | None:
        kwargs = {"logger": logger, "memo": object()}  # as for all handlers
        info = login_with_service_account(**kwargs) or login_with_kubeconfig(**kwargs)
        return None if info is None else info.token

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert log_in() is None

    (tmp_path / ".kube").mkdir()
    write(tmp_path / ".kube/config", build_kubeconfig({"token": "home"}))
    assert log_in() == "home"

    path = write(tmp_path / "other", build_kubeconfig({"token": "other"}))
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([str(tmp_path / "absent"), str(path)]))
    assert log_in() == "other"

    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(LoginError, match=r"no kubeconfig at .*absent"):
        log_in()


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


@pytest.mark.feature("AUT-09", "AUT-14")
def test_the_token_of_a_service_account_is_read_again_before_its_end(tmp_path: Path) -> None:
    now = int(time.time())
    token = build_token({"iat": now, "exp": now + 365 * 86400, "kubernetes.io": {
        "warnafter": now + 3607,
    }})  # fmt: skip
    (tmp_path / "token").write_text(token)
    info = read_service_account(tmp_path, {})
    assert info is not None
    assert info.expiration == dt.datetime.fromtimestamp(now + 3547, dt.UTC)


def test_files_of_a_service_account_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xff")
    with pytest.raises(LoginError, match=r"token of the service account cannot be read"):
        read_service_account(tmp_path, {})
    assert read_service_account(tmp_path / "token", {}) is None
