"""Keys from memory to a TLS context, leaving nothing behind."""

from __future__ import annotations

import os
import ssl
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.kit.rows import rows
from webop.errors import ConfigurationError
from webop.keymaterial import load_key_material
from webop.servers.certificates.certs import build_certificate_self_signed

PAIR = build_certificate_self_signed(["localhost"])
LOCKED = build_certificate_self_signed(["localhost"], "secret")


@pytest.fixture
def context() -> ssl.SSLContext:
    return ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)


def test_certificate_and_key_are_loaded_from_two_texts_or_one_and_decrypted(
    context: ssl.SSLContext,
) -> None:
    load_key_material(context, PAIR.cert, PAIR.key)
    load_key_material(context, PAIR.key + PAIR.cert)
    load_key_material(context, LOCKED.cert, LOCKED.key, "secret")


@rows(
    ("arguments", "error", "message"),
    [
        ((LOCKED.cert, LOCKED.key, "wrong"), ssl.SSLError, None),
        ((LOCKED.cert, LOCKED.key, ""), ssl.SSLError, None),
        # It is not asked for on the terminal.
        ((LOCKED.cert, LOCKED.key), ConfigurationError, "give its password"),
        ((LOCKED.cert, PAIR.key), ssl.SSLError, "KEY_VALUES_MISMATCH"),
        ((b"not PEM",), ssl.SSLError, None),
    ],
)
def test_what_does_not_fit_is_an_error(
    context: ssl.SSLContext, arguments: Any, error: type[Exception], message: str | None
) -> None:
    with pytest.raises(error, match=message):
        load_key_material(context, *arguments)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memory files")
def test_keys_do_not_touch_the_disk_where_there_are_memory_files(
    context: ssl.SSLContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    before = list(Path("/proc/self/fd").iterdir())
    load_key_material(context, PAIR.cert, PAIR.key)
    assert len(list(Path("/proc/self/fd").iterdir())) == len(before)


def test_keys_do_not_stay_on_the_disk_where_there_are_no_memory_files(
    context: ssl.SSLContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delattr(os, "memfd_create", raising=False)
    load_key_material(context, PAIR.cert, PAIR.key)
    with pytest.raises(ssl.SSLError):
        load_key_material(context, b"")
    assert list(tmp_path.iterdir()) == []
