"""Exec plugins of the tests' own, and kubeconfigs that run them."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

V1 = "client.authentication.k8s.io/v1"
V1BETA1 = "client.authentication.k8s.io/v1beta1"


@dataclass(frozen=True)
class PluginFolder:
    folder: Path

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "config"

    @property
    def runs(self) -> int:
        log = self.folder / "runs"
        return len(log.read_text().splitlines()) if log.exists() else 0

    def write_script(self, *lines: str) -> Path:
        """Write the plugin as a shell script: Python would take longer to start."""
        path = self.folder / "plugin.sh"
        path.write_text("\n".join(["#!/bin/sh", f"echo x >> {self.folder}/runs", *lines, ""]))
        path.chmod(0o755)
        return path

    def write_answer(self, *, version: str = V1, **status: Any) -> None:
        """Write what the plugin is to print: an ExecCredential."""
        answer = {"apiVersion": version, "kind": "ExecCredential", "status": status}
        new = self.folder / "answer.new"
        new.write_text(json.dumps(answer))
        new.rename(self.folder / "answer")  # at once: the plugin may be running

    def write_kubeconfig(self, cluster: dict[str, Any] | None = None, **plugin: Any) -> Path:
        """Write the kubeconfig; by default, for a script that prints the answer."""
        described = {"apiVersion": V1, "command": "./plugin.sh", "interactiveMode": "Never"}
        described.update(plugin)
        if not (self.folder / "plugin.sh").exists():
            self.write_script(f"cat {self.folder}/answer")
        self.kubeconfig.write_text(
            json.dumps(build_kubeconfig({"exec": described}, **(cluster or {})))
        )
        return self.kubeconfig


def build_kubeconfig(
    user: dict[str, Any] | None = None, *, namespace: str = "ns", **cluster: Any
) -> dict[str, Any]:
    context = {"cluster": "cl", "user": "us", "namespace": namespace}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "ctx",
        "contexts": [{"name": "ctx", "context": context}],
        "clusters": [{"name": "cl", "cluster": {"server": "https://host", **cluster}}],
        "users": [{"name": "us", "user": user or {}}],
    }


def write_kubeconfig(folder: Path, server: str) -> str:
    """Write a kubeconfig with a token for a server; return its path."""
    path = folder / "kubeconfig"
    path.write_text(json.dumps(build_kubeconfig({"token": "t"}, server=server)))
    return str(path)


def is_running(pid: int) -> bool:
    """Tell whether there is such a process, zombies not counted."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def build_token(claims: Any, *, parts: int = 3) -> str:
    """Return a token that looks like a JWT; nobody verifies it."""
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return ".".join(["e30", payload, "signature"][:parts])
