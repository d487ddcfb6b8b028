"""Whether the certificate of the webhook server is what the ``caBundle`` trusts.

The handshake is the one of the API server: the same authorities, and no others; the same server
name, in the subjectAltName. Where nobody can be connected to, it is done in memory with what is
in the Secret of :class:`webop.WebhookServiceServer`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import datetime as dt
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field

from webop.doctor.findings import Finding, approve, complain, note, warn
from webop.doctor.report import describe_seconds
from webop.doctor.routes import ABSENT, CONNECT_TIMEOUT, Route, describe_os_error
from webop.errors import ConfigurationError
from webop.keymaterial import load_key_material
from webop.servers.certificates.certs import read_validity, split_certificates

_SUBJECT = "certificate"
_BUNDLE = "caBundle"
_MAX_FLIGHTS = 10  # of messages, in a handshake
_SOON = dt.timedelta(days=7)
_SOON_SHARE = 0.1  # of the life; for those that live for days only

_RENEW = (
    "The operator puts in its own within a minute of its start: start it, or look into its log. "
    "With certificates of your own, give cafile= to the webhook server."
)


class MismatchError(Exception):
    """The handshake has failed: the certificate is not trusted."""


@dataclass(frozen=True, slots=True)
class Material:
    """A certificate with its key, in PEM."""

    cert: bytes
    key: bytes = field(repr=False)


def check_bundle(text: str | None, now: dt.datetime, *, is_required: bool) -> Iterator[Finding]:
    """Check that a ``caBundle`` can be used, now and for some time. Pure.

    What counts is the certificate in it that lives longest: during a rotation, there are old ones.

    Args:
        text: the ``caBundle``: base64 of PEM.
        now: the time.
        is_required: whether objects are refused if it is not.
    """
    if not text:
        yield note(_BUNDLE, "there is none: only authorities that the API server knows are trusted")
        return
    try:
        validities = [read_validity(pem) for pem in split_bundle(text)]
    except ValueError as exc:
        why = f"it cannot be read: {exc}"
        yield complain(_BUNDLE, why, _RENEW, is_failure=is_required)
        return
    start, end = max(validities, key=lambda validity: validity[1])
    count = "" if len(validities) == 1 else f"{len(validities)} authorities, the last one "
    if end <= now:
        why = f"{count}expired {_describe(end, now)}"
        yield complain(_BUNDLE, why, _RENEW, is_failure=is_required)
    elif is_ending(start, end, now):
        yield warn(_BUNDLE, f"{count}expires {_describe(end, now)}", _RENEW)
    else:
        yield approve(_BUNDLE, f"{count}valid until {end:%Y-%m-%d}")


def split_bundle(text: str) -> tuple[bytes, ...]:
    """Return the certificates of a ``caBundle``, in PEM.

    Raises:
        ValueError: it is not base64, or there are no certificates in it.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as exc:
        raise ValueError(f"it is not base64 ({exc})") from None
    try:
        return split_certificates(data)
    except ValueError:
        raise ValueError("there are no certificates in PEM in it") from None


def is_ending(start: dt.datetime, end: dt.datetime, now: dt.datetime) -> bool:
    """Tell whether so little of a certificate's life is left that somebody has to act. Pure."""
    return end - now < min((end - start) * _SOON_SHARE, _SOON)


def build_context(bundle: str | None) -> ssl.SSLContext:
    """Return what makes a handshake such as the API server's (which is written in Go).

    Raises:
        ValueError: the bundle cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.hostname_checks_common_name = False
    # Whatever is in the bundle is trusted, not only what is its own authority.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if bundle:
        context.load_verify_locations(cadata=b"".join(split_bundle(bundle)).decode("ascii"))
    else:
        context.load_default_certs()
    return context


async def shake_hands(host: str, port: int, server_name: str, context: ssl.SSLContext) -> bytes:
    """Connect by TLS; return the certificate that is shown, in PEM.

    Raises:
        MismatchError: the certificate is not trusted.
        OSError: there is no connection, or no TLS.
    """
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            _, writer = await asyncio.open_connection(
                host, port, ssl=context, server_hostname=server_name
            )
    except ssl.SSLCertVerificationError as exc:
        raise MismatchError(_explain(exc)) from exc
    session: ssl.SSLObject = writer.get_extra_info("ssl_object")
    shown = session.getpeercert(binary_form=True) or b""
    writer.transport.abort()
    return ssl.DER_cert_to_PEM_cert(shown).encode()


def rehearse(pair: Material, server_name: str, context: ssl.SSLContext) -> None:
    """Do the handshake in memory with a certificate and its key.

    Raises:
        MismatchError: the certificate is not trusted, or cannot be used at all.
    """
    try:
        material = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        load_key_material(material, pair.cert, pair.key)
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(to_client, to_server, server_hostname=server_name)
        server = material.wrap_bio(to_server, to_client, server_side=True)
        sides = [client, server]
        for _ in range(_MAX_FLIGHTS):
            sides = [side for side in sides if not _advance(side)]
    except ssl.SSLCertVerificationError as exc:
        raise MismatchError(_explain(exc)) from exc
    except (ssl.SSLError, ConfigurationError) as exc:
        raise MismatchError(f"it cannot be used with its key: {exc}") from exc


async def check_shown(
    route: Route, host: str, bundle: str | None, now: dt.datetime, *, is_required: bool
) -> list[Finding]:
    """Connect to a server, and check the certificate that it shows."""
    try:
        shown = await shake_hands(host, route.port, route.server_name, build_context(bundle))
    except MismatchError as exc:
        return [_refuse(route.server_name, str(exc), is_required=is_required)]
    except (OSError, ValueError) as exc:
        return [_describe_no_handshake(exc)]
    return list(judge_validity(shown, route.server_name, now))


def check_stored(
    material: Material, route: Route, bundle: str | None, now: dt.datetime, *, is_required: bool
) -> Iterator[Finding]:
    """Check the certificate in a Secret, which the replicas show."""
    try:
        rehearse(material, route.server_name, build_context(bundle))
    except MismatchError as exc:
        why = f"{exc} (as it is in the Secret)"
        yield _refuse(route.server_name, why, is_required=is_required)
    except ValueError as exc:
        yield _describe_no_handshake(exc)
    else:
        yield from judge_validity(material.cert, route.server_name, now)


def judge_validity(pem: bytes, server_name: str, now: dt.datetime) -> Iterator[Finding]:
    """Judge a certificate that is trusted: it may not be so for long. Pure."""
    start, end = read_validity(pem)
    if is_ending(start, end, now):
        yield warn(
            _SUBJECT,
            f"that for {server_name} expires {_describe(end, now)}",
            "Renew it. What webop makes is renewed in time, unless something prevents that: "
            "see the log of the operator.",
        )
    else:
        yield approve(_SUBJECT, f"that for {server_name} is trusted, valid until {end:%Y-%m-%d}")


def _advance(side: ssl.SSLObject) -> bool:
    """Go on with a handshake; tell whether it is done."""
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _refuse(server_name: str, why: str, *, is_required: bool) -> Finding:
    remedy = _RENEW
    if "ostname" in why or "IP address" in why:
        remedy = f"Make a certificate that has {server_name} in its subjectAltName."
    elif "expired" in why:
        remedy = "Renew the certificate, or restart the operator if it is of its own making."
    text = f"that for {server_name} is not trusted by the caBundle: {why}"
    return complain(_SUBJECT, text, remedy, is_failure=is_required)


def _describe_no_handshake(exc: Exception) -> Finding:
    if isinstance(exc, ssl.SSLError):
        return warn(
            _SUBJECT,
            f"what answers does not speak TLS as expected: {exc.reason or exc}",
            "Let the Service or the URL lead to the port of the webhook server.",
        )
    if isinstance(exc, socket.gaierror | ValueError):  # the bundle itself has been judged before
        return note(_SUBJECT, f"it could not be looked at from here: {describe_os_error(exc)}")
    reason = "no answer in time" if isinstance(exc, TimeoutError) else describe_os_error(exc)
    return warn(_SUBJECT, f"it could not be looked at from here: {reason}", ABSENT)


def _explain(exc: ssl.SSLCertVerificationError) -> str:
    return exc.verify_message or str(exc)


def _describe(end: dt.datetime, now: dt.datetime) -> str:
    span = describe_seconds(abs((end - now).total_seconds()))
    when = f"on {end:%Y-%m-%d %H:%M} UTC"
    return f"{when}, {span} ago" if end <= now else f"{when}, in {span}"
