from __future__ import annotations

import platform

import pytest

from tests.kit.rows import rows
from webop.controlplane.versions import (
    PINNED_VERSION,
    choose_for_build,
    choose_newest,
    detect_platform,
    is_met_by,
    parse_wanted,
)
from webop.errors import ConfigurationError


@rows(
    ("text", "version", "fits"),
    [
        ("1.36", "1.36.0", True),
        ("1.36", "v1.36.11", True),
        ("1.36.3", "1.36.4", False),
        ("1.36", "1.35.3", False),
        ("1.36", "1.36.0-rc.1", False),
        ("1.3", "1.36.3", False),
        (None, PINNED_VERSION, True),
    ],
)
def test_a_version_is_met_by_itself_and_a_release_line_by_each_of_its_versions(
    text: str | None, version: str, fits: bool
) -> None:
    assert is_met_by(parse_wanted(text), version) is fits


@rows("text", ["", "latest", "1", "1.36.x", "1.36.3.4"])
def test_what_is_not_a_version_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"write 1\.36"):
        parse_wanted(text)


def test_the_newest_fitting_version_is_chosen_by_number_and_not_by_letters() -> None:
    assert choose_newest(parse_wanted("1.36"), ["1.36.9", "1.36.10", "1.37.0"]) == "1.36.10"
    assert choose_newest(parse_wanted("1.36"), ["1.35.9"]) is None


@rows(
    ("text", "version"),
    [
        (None, PINNED_VERSION),
        ("1.35", "1.35"),
        ("1.33", "1.33.13"),
    ],
)
def test_the_pinned_version_is_built_where_it_fits(text: str | None, version: str) -> None:
    assert choose_for_build(parse_wanted(text)) == version


@pytest.mark.parametrize(
    ("system", "machine", "expected"),
    [
        ("Linux", "x86_64", ("linux", "amd64")),
        ("Linux", "aarch64", ("linux", "arm64")),
        ("Darwin", "arm64", ("darwin", "arm64")),
    ],
)
def test_platforms_are_named_in_the_words_of_go(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, expected: tuple[str, str]
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert detect_platform() == expected


def test_windows_is_refused_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    with pytest.raises(ConfigurationError, match="WSL"):
        detect_platform()
