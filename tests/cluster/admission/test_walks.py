"""The walk of the manual with curl and openssl, typed as a user types it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.kit.processes import Workshop
from tests.kit.reviews import UID, build_review
from webop.controlplane.cluster_client import find_free_port

_HANDLERS = """
import os
import ssl
import webop as kopf

@kopf.on.startup()
def config(settings: kopf.OperatorSettings, **_):
    settings.admission.server = kopf.WebhookServer(
        port=int(os.environ['PORT']), verify_cafile='client-cert.pem',
        verify_mode=ssl.CERT_OPTIONAL)

@kopf.on.validate('kopfexamples')
def show_auth(headers, sslpeer, warnings, **_):
    print(f'{headers=}', flush=True)
    print(f'{sslpeer=}', flush=True)
    if sslpeer:
        subject = dict(pair for part in sslpeer['subject'] for pair in part)
        warnings.append(f"SSL peer is {subject['commonName']}.")

@kopf.on.validate('kopfexamples')
def tell_dry_runs(warnings, dryrun, **_):
    if dryrun:
        warnings.append("This is a dry run.")
"""


async def execute(*argv: str, folder: Path) -> str:
    """Run a command; return its output."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=folder,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    stdout, stderr = await process.communicate()
    assert process.returncode == 0, stderr.decode()
    return stdout.decode()


@pytest.mark.feature("ADM-25", "ADM-26", "ADM-77", "ADM-88", "ADM-89")
async def test_the_walk_with_curl_and_a_client_certificate(workshop: Workshop) -> None:
    port, folder = find_free_port(), workshop.folder
    await execute(
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "365"),
        *("-keyout", "client-key.pem", "-out", "client-cert.pem"),
        *("-subj", "/CN=Example Common Name/emailAddress=example@kopf.dev"),
        folder=folder,
    )
    (folder / "review.json").write_text(json.dumps(build_review(dryRun=True)))
    url = f"https://ussser:passsw@localhost:{port}"
    curl = ("curl", "--silent", "--show-error", "--insecure", url, "-d", "@review.json")
    identity = ("--cert", "client-cert.pem", "--key", "client-key.pem")
    async with workshop.start("-A", workshop.write(_HANDLERS), PORT=str(port)) as served:
        await served.wait_for("Serving webhooks at")
        response = json.loads(await execute(*curl, *identity, folder=folder))["response"]
        assert (response["uid"], response["allowed"]) == (UID, True)
        assert response["warnings"] == ["SSL peer is Example Common Name.", "This is a dry run."]
        for word in (
            "'Authorization': 'Basic dXNzc2VyOnBhc3Nzdw=='",
            "'Content-Type': 'application/x-www-form-urlencoded'",
            (
                "sslpeer={'subject': ((('commonName', 'Example Common Name'),), "
                "(('emailAddress', 'example@kopf.dev'),))"
            ),
        ):
            assert word in served.output
        output = await execute(*curl, folder=folder)
        assert json.loads(output)["response"]["warnings"] == ["This is a dry run."]
        await served.wait_for("sslpeer=None")
