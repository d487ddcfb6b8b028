"""The comparison of public operators, where it decides something; and the files about them."""

from __future__ import annotations

import http.server
import io
import sys
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest

from bench.model import BenchError
from bench.wild.compare import Difference, explain, find_differences, normalise
from bench.wild.model import NAMES, Explanation, load
from bench.wild.sources import provide_sources
from tests.kit.processes import run_module

UID = "0b3d3a3e-7b0c-4f8e-9d58-0f4d4b1f2c3d"


def build(name: str = "x", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, **fields}


@pytest.mark.parametrize("name", NAMES)
def test_each_operator_is_pinned_and_has_steps(name: str) -> None:
    wild = load(name)
    assert wild.commit or "==" in wild.requirements[0]
    assert len(wild.steps) >= 4
    assert any(step.restart for step in wild.steps)


def test_what_differs_from_cluster_to_cluster_is_no_difference() -> None:
    one, other = (
        build(
            status={"since": time, "owner": uid, "at": seconds, "observedGeneration": seconds},
            spec={"clusterIP": address, "note": f'{{"of": "{uid}"}}'},
        )
        for time, uid, seconds, address in [
            ("2026-11-22T09:00:00Z", UID, 1795338000, "10.0.0.1"),
            ("2026-11-22 10:11:12.123+00:00", UID.replace("0b", "1c"), 1795338111.5, "10.0.0.2"),
        ]
    )
    assert find_differences(normalise([one]), normalise([other])) == []


def test_a_field_that_differs_is_named_even_within_a_state_in_json() -> None:
    one, other = (
        normalise([build(status={"state": f'{{"retries": {number}}}', "ready": [1, number]})])
        for number in (1, 2)
    )
    assert find_differences(one, other) == [
        Difference("Deployment.apps x: status.ready.1", 1, 2),
        Difference("Deployment.apps x: status.state.retries", 1, 2),
    ]


def test_an_object_of_one_side_only_is_a_difference() -> None:
    found = find_differences(normalise([build()]), {})
    assert [(item.place, item.webop) for item in found] == [
        ("Deployment.apps x: object", "(absent)")
    ]


def test_objects_with_random_names_are_compared_as_a_set() -> None:
    one, other = (
        normalise([build(f"pod-{name}", spec=number) for name, number in names], ["(?<=pod-).*"])
        for names in ([("ab", 1), ("cd", 2)], [("zz", 2), ("yy", 1)])
    )
    assert list(one) == ["Deployment.apps pod-<random> #1", "Deployment.apps pod-<random> #2"]
    assert find_differences(one, other) == []


def test_a_difference_is_explained_by_a_pattern_for_its_place() -> None:
    found = Difference("Deployment.apps x: status.phase", 1, 2)
    known = Explanation(differences="Deployment.apps *: status.*", because="it is so")
    assert explain(found, [known]) == "it is so"
    assert explain(found._replace(place="Deployment.apps x: spec"), [known]) is None


def test_unknown_operators_are_refused() -> None:
    done = run_module("bench.wild", "nothing")
    assert done.returncode == 2
    assert "nothing: not one of anarchy, " in done.stderr


class Archive(http.server.BaseHTTPRequestHandler):
    """A place for code with one project, at one commit, as an archive with one folder in it."""

    def do_GET(self) -> None:
        found = self.path == "/team/operator/archive/abc.tar.gz"
        self.send_response(200 if found else 404)
        self.end_headers()
        if found:
            content = io.BytesIO()
            with tarfile.open(fileobj=content, mode="w:gz") as archive:
                archive.addfile(tarfile.TarInfo("operator-abc/handlers.py"))
            self.wfile.write(content.getvalue())

    def log_message(self, *args: object) -> None:
        """Keep quiet."""


def test_sources_are_downloaded_at_their_commit_unless_a_folder_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.wild.sources.CACHE", tmp_path / "cache")
    wild = load("anarchy").model_copy(update={"commit": "abc"})
    with http.server.HTTPServer(("127.0.0.1", 0), Archive) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = f"http://127.0.0.1:{server.server_port}/team"
        here = wild.model_copy(update={"homepage": f"{place}/operator"})
        sources = provide_sources(here, None, Path(sys.executable))
        assert [path.name for path in sources.iterdir()] == ["handlers.py"]
        gone = wild.model_copy(update={"homepage": f"{place}/other", "commit": "abd"})
        with pytest.raises(BenchError, match=r"Use --sources instead\."):
            provide_sources(gone, None, Path(sys.executable))
        server.shutdown()
    (tmp_path / "anarchy").mkdir()
    assert provide_sources(gone, tmp_path, Path(sys.executable)) == tmp_path / "anarchy"
