"""Run the example under uvicorn without a cluster, and post reviews as curl does."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.kit.waiting import wait_until

_ROOT = Path(__file__).parents[3]
_EXAMPLE = _ROOT / "examples" / "ephemeral_volume_claims"
_DEADLINE = 30.0


@dataclass
class Server:
    """A uvicorn process with the example."""

    url: str
    log: Path

    def post(self, path: str, review: dict[str, Any]) -> dict[str, Any]:
        """Post a review as curl does, with the content type of forms, and return the response."""
        answer = httpx.post(
            f"{self.url}/{path}",
            content=json.dumps(review),
            headers={"Content-Type": "application/x-www-form-urlencoded"},
            trust_env=False,
        )
        assert answer.status_code == 200, answer.text
        response: dict[str, Any] = answer.json()["response"]
        assert response["uid"] == review["request"]["uid"]
        return response


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("home")
    log = home / "uvicorn.log"
    dropped = ("WEBOP_", "EVC_", "KUBE")
    environment = {name: v for name, v in os.environ.items() if not name.startswith(dropped)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "webop.app:app", "--port", "0"],
            cwd=_ROOT,
            env={
                **environment,
                "HOME": str(home),
                "WEBOP_MODULES": "examples/ephemeral_volume_claims/handlers.py",
            },
            stdout=output,
            stderr=output,
        )
    try:
        yield Server(_wait_for_url(process, log), log)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(_DEADLINE)
    assert "Traceback" not in log.read_text()


def _wait_for_url(process: subprocess.Popen[bytes], log: Path) -> str:
    def find() -> re.Match[str] | None:
        assert process.poll() is None, log.read_text()
        return re.search(r"running on (http://\S+)", log.read_text())

    return str(wait_until(find, log.read_text)[1])


def build_review(
    size: object, *, old_size: object = None, operation: str = "CREATE"
) -> dict[str, Any]:
    review: dict[str, Any] = json.loads((_EXAMPLE / "review.json").read_text())
    request = review["request"]
    request["operation"] = operation
    request["object"]["spec"] = {} if size is None else {"size": size}
    if operation == "UPDATE":
        request["oldObject"] = {**request["object"], "spec": {"size": old_size}}
    return review


def read_patch(response: dict[str, Any]) -> list[dict[str, Any]]:
    assert response["allowed"]
    return json.loads(base64.b64decode(response["patch"])) if "patch" in response else []


@pytest.mark.feature("ADM-01", "ADM-08", "ADM-09", "ADM-88")
def test_a_claim_without_a_size_is_given_the_default_size(server: Server) -> None:
    review = json.loads((_EXAMPLE / "review.json").read_text())
    assert read_patch(server.post("default-size", review)) == [
        {"op": "add", "path": "/spec/size", "value": "1G"}
    ]


def test_a_claim_without_any_spec_is_given_one(server: Server) -> None:
    review = build_review(None)
    del review["request"]["object"]["spec"]
    assert read_patch(server.post("default-size", review)) == [
        {"op": "add", "path": "/spec", "value": {"size": "1G"}}
    ]


def test_a_claim_that_is_stripped_of_its_size_keeps_it(server: Server) -> None:
    review = build_review(None, old_size="5G", operation="UPDATE")
    assert read_patch(server.post("default-size", review)) == [
        {"op": "add", "path": "/spec/size", "value": "5G"}
    ]


def test_a_claim_with_a_size_is_left_as_it_is(server: Server) -> None:
    assert read_patch(server.post("default-size", build_review("2G"))) == []


@pytest.mark.feature("ADM-02")
@pytest.mark.parametrize("size", ["1G", "500Mi", "1.5Ti", "1Pi", 1_000_000_000, "2e9", None])
def test_possible_sizes_are_admitted(server: Server, size: object) -> None:
    assert server.post("check-size", build_review(size))["allowed"]


@pytest.mark.feature("ADM-02", "ADM-03")
@pytest.mark.parametrize(
    ("size", "reason"),
    [
        ("plenty", "spec.size: 'plenty' is not a quantity, such as 500Mi, 1G or 1.5Ti."),
        ("", "spec.size: '' is not a quantity, such as 500Mi, 1G or 1.5Ti."),
        ("0", "spec.size: '0' is out of range: above 0, 1Pi at most."),
        ("-5G", "spec.size: '-5G' is out of range: above 0, 1Pi at most."),
        ("2Pi", "spec.size: '2Pi' is out of range: above 0, 1Pi at most."),
    ],
)
def test_impossible_sizes_are_refused_with_the_reason(
    server: Server, size: str, reason: str
) -> None:
    response = server.post("check-size", build_review(size))
    assert not response["allowed"]
    assert response["status"] == {"message": reason, "code": 422}


@pytest.mark.feature("ADM-07")
@pytest.mark.parametrize(
    ("size", "warning"),
    [
        ("2Ti", "spec.size: '2Ti' is large. You pay for it until you delete it."),
        ("5", "spec.size: '5' is only 5 bytes."),
        ("500m", "spec.size: '500m' is only 0.5 bytes ('m' stands for thousandths; use 'M' for"),
    ],
)
def test_doubtful_sizes_are_admitted_with_a_warning(
    server: Server, size: str, warning: str
) -> None:
    response = server.post("check-size", build_review(size))
    assert response["allowed"]
    (given,) = response["warnings"]
    assert given.startswith(warning)


def test_usual_sizes_draw_no_warning(server: Server) -> None:
    assert not server.post("check-size", build_review("1Ti")).get("warnings")


@pytest.mark.parametrize(
    ("old_size", "size", "allowed"),
    [
        ("1G", "2G", True),
        ("1G", "1G", True),
        ("1G", "1000M", True),
        ("1Gi", "1G", False),
        ("2G", "500M", False),
        ("wrong from before", "1G", True),
    ],
)
def test_sizes_can_only_grow(server: Server, old_size: str, size: str, allowed: bool) -> None:
    review = build_review(size, old_size=old_size, operation="UPDATE")
    response = server.post("refuse-shrinking", review)
    assert response["allowed"] is allowed
    if not allowed:
        wanted = f"spec.size: volumes can only grow, not shrink from {old_size} to {size}."
        assert response["status"]["message"] == wanted


def test_a_wrong_size_from_before_does_not_stand_in_the_way_of_other_changes(
    server: Server,
) -> None:
    review = build_review("plenty", old_size="plenty", operation="UPDATE")
    assert server.post("check-size", review)["allowed"]
    assert server.post("refuse-shrinking", review)["allowed"]


@pytest.mark.parametrize(
    ("file", "allowed"), [("review", True), ("doubtful", True), ("refused", False)]
)
def test_the_reviews_of_the_example_go_to_all_handlers_at_once(
    server: Server, file: str, allowed: bool
) -> None:
    review = json.loads((_EXAMPLE / f"{file}.json").read_text())
    assert server.post("", review)["allowed"] is allowed


def test_unknown_handlers_are_not_found(server: Server) -> None:
    answer = httpx.post(f"{server.url}/no-such", json=build_review("1G"), trust_env=False)
    assert answer.status_code == 404
    assert "known: default-size, check-size, refuse-shrinking" in answer.text


@pytest.mark.feature("PRB-01")
def test_the_probe_is_answered_with_no_cluster_at_hand(server: Server) -> None:
    answer = httpx.get(f"{server.url}/healthz", trust_env=False)
    assert answer.status_code == 200
    assert "now" in answer.json()


def test_the_log_says_that_only_admission_is_served(server: Server) -> None:
    expected = "Until the login succeeds, only admission and probes are served."
    for _ in range(500):
        if expected in server.log.read_text():
            return
        time.sleep(0.02)
    raise AssertionError(server.log.read_text())
