"""Keys from memory to a TLS context, leaving nothing behind."""

from __future__ import annotations

import os
import ssl
import tempfile
from pathlib import Path

import pytest

from webop.errors import ConfigurationError
from webop.keymaterial import load_key_material
from webop.servers.certificates.certs import KeyPair, build_certificate_self_signed


@pytest.fixture(scope="module")
def pair() -> KeyPair:
    return build_certificate_self_signed(["localhost"])


@pytest.fixture(scope="module")
def locked() -> KeyPair:
    return build_certificate_self_signed(["localhost"], "secret")


@pytest.fixture
def context() -> ssl.SSLContext:
    return ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_certificate_and_key_are_loaded_from_two_texts_or_one_and_decrypted(
    context: ssl.SSLContext, pair: KeyPair, locked: KeyPair
) -> None:
    load_key_material(context, pair.cert, pair.key)
    load_key_material(context, pair.key + pair.cert)
    load_key_material(context, locked.cert, locked.key, "secret")


@pytest.mark.parametrize("password", ["wrong", "", b"wrong"])
def test_a_wrong_password_is_an_error(
    context: ssl.SSLContext, locked: KeyPair, password: str
) -> None:
    with pytest.raises(ssl.SSLError):
        load_key_material(context, locked.cert, locked.key, password)


def test_a_missing_password_is_an_error_and_not_a_question_on_the_terminal(
    context: ssl.SSLContext, locked: KeyPair
) -> None:
    with pytest.raises(ConfigurationError, match="give its password"):
        load_key_material(context, locked.cert, locked.key)


def test_a_key_of_another_certificate_is_an_error(
    context: ssl.SSLContext, pair: KeyPair, locked: KeyPair
) -> None:
    with pytest.raises(ssl.SSLError, match="KEY_VALUES_MISMATCH"):
        load_key_material(context, locked.cert, pair.key)


@pytest.mark.parametrize("text", [b"", b"not PEM"])
def test_a_text_that_is_not_pem_is_an_error(context: ssl.SSLContext, text: bytes) -> None:
    with pytest.raises(ssl.SSLError):
        load_key_material(context, text)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memory files")
def test_keys_do_not_touch_the_disk_where_there_are_memory_files(
    context: ssl.SSLContext, pair: KeyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    before = list(Path("/proc/self/fd").iterdir())
    load_key_material(context, pair.cert, pair.key)
    assert len(list(Path("/proc/self/fd").iterdir())) == len(before)


def test_keys_do_not_stay_on_the_disk_where_there_are_no_memory_files(
    context: ssl.SSLContext, pair: KeyPair, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    load_key_material(context, pair.cert, pair.key)
    with pytest.raises(ssl.SSLError):
        load_key_material(context, b"")
    assert list(scratch.iterdir()) == []
