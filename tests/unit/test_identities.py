"""Which processes have the same name: a container after its restart, and nobody else."""

from __future__ import annotations

import subprocess
import sys

import pytest

from webop.identities import detect_process, detect_process_identity


def test_in_a_pod_only_the_next_process_with_the_same_id_has_the_same_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POD_ID", "operator-1")
    command = "from webop.identities import *; print(detect_process_identity(), detect_process())"
    answer = subprocess.check_output([sys.executable, "-c", command], text=True)
    identity, beside = answer.split()
    assert identity == detect_process_identity() == "operator-1"
    own = detect_process()
    assert beside != own == detect_process()
    monkeypatch.setenv("POD_ID", "operator-2")
    assert detect_process() != own


def test_outside_of_pods_all_names_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POD_ID", raising=False)
    assert detect_process_identity() != detect_process_identity()
    assert detect_process() != detect_process()
