"""The walks of the manual, typed as a user types them: curl, openssl, kubectl."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.operators import Kind, connect
from tests.kit.processes import Command, Workshop
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.controlplane.requests import find_free_port
from webop.errors import APIStatusError

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

Json = dict[str, Any]

_HANDLERS = """
import os
import ssl
import webop as kopf

@kopf.on.startup()
def config(settings: kopf.OperatorSettings, **_):
    settings.admission.managed = os.environ['GROUP']
    settings.admission.server = kopf.WebhookServer(
        port=int(os.environ['PORT']), verify_cafile='client-cert.pem',
        verify_mode=ssl.CERT_OPTIONAL)

@kopf.on.validate(os.environ['SHORT'])
def show_auth(headers, sslpeer, warnings, **_):
    print(f'{headers=}', flush=True)
    print(f'{sslpeer=}', flush=True)
    if sslpeer:
        subject = dict(pair for part in sslpeer['subject'] for pair in part)
        warnings.append(f"SSL peer is {subject['commonName']}.")

@kopf.on.validate(os.environ['SHORT'])
def numbers_range(spec, **_):
    if not all(0 <= float(val) <= 100 for val in spec.get('numbers', [])):
        raise kopf.AdmissionError("Numbers must be below 0..100.", code=499)

@kopf.on.validate(os.environ['SHORT'])
def field_is_common(spec, warnings, dryrun, **_):
    if spec.get('field') == 'value':
        warnings.append("The default value is used. It is okay but worth changing.")
    if dryrun:
        warnings.append("This is a dry run.")

@kopf.on.mutate(os.environ['SHORT'])
def ensure_default_numbers(spec, patch, **_):
    if 'numbers' not in spec:
        patch.spec['numbers'] = [1, 2, 3]
"""

# The manual's, for the kind of this test.
_REVIEW = """
{
  "kind": "AdmissionReview",
  "apiVersion": "admission.k8s.io/v1",
  "request": {
    "uid": "1ca13837-ad60-4c9e-abb8-86f29d6c0e84",
    "kind": {"group": "GROUP", "version": "v1", "kind": "KIND"},
    "resource": {"group": "GROUP", "version": "v1", "resource": "PLURAL"},
    "requestKind": {"group": "GROUP", "version": "v1", "kind": "KIND"},
    "requestResource": {"group": "GROUP", "version": "v1", "resource": "PLURAL"},
    "name": "kopf-example-1",
    "namespace": "default",
    "operation": "CREATE",
    "userInfo": {"username": "admin", "uid": "admin", "groups": ["system:masters", "system:authenticated"]},
    "object": {
      "apiVersion": "GROUP/v1",
      "kind": "KIND",
      "metadata": {"name": "kopf-example-1", "namespace": "default"}
    },
    "oldObject": null,
    "dryRun": true
  }
}
"""  # noqa: E501 - as it is there


async def execute(*argv: str | Path, folder: Path, **variables: str) -> tuple[int, str, str]:
    """Run a command; return its exit code and its two outputs."""
    process = await asyncio.create_subprocess_exec(
        *map(str, argv),
        cwd=folder,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder), **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    stdout, stderr = await process.communicate()
    return process.returncode or 0, stdout.decode(), stderr.decode()


class Walk:
    """A running operator with webhooks for a kind of its own."""

    def __init__(self, folder: Path, kind: Kind, port: int, command: Command) -> None:
        self.folder, self.kind, self.port, self.command = folder, kind, port, command

    async def kubectl(
        self, cluster: LocalCluster, name: str, spec: Json, *options: str
    ) -> tuple[int, str, str]:
        """Create an object from a file."""
        body = {
            "apiVersion": f"{self.kind.group}/v1",
            "kind": self.kind.kind,
            "metadata": {"name": name},
            "spec": spec,
        }
        (self.folder / "obj.yaml").write_text(json.dumps(body))
        return await execute(
            *("kubectl", "create", "-f", "obj.yaml", "-o", "json", *options),
            folder=self.folder,
            KUBECONFIG=str(cluster.kubeconfig),
        )


@contextlib.asynccontextmanager
async def walk(workshop: Workshop, cluster: LocalCluster, kind: Kind) -> AsyncIterator[Walk]:
    """Go as far as to the running operator, with its webhooks in the cluster."""
    code, _, errors = await execute(
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "365"),
        *("-keyout", "client-key.pem", "-out", "client-cert.pem"),
        *("-subj", "/CN=Example Common Name/emailAddress=example@kopf.dev"),
        folder=workshop.folder,
    )
    assert code == 0, errors
    async with connect(cluster) as client:
        await kind.define(client)
    port = find_free_port()
    variables = {
        "KUBECONFIG": str(cluster.kubeconfig),
        "GROUP": kind.group,
        "SHORT": kind.shortcut,
        "PORT": str(port),
        "WEBOP_ADMISSION__SHUTDOWN_DELAY": "0",
    }
    file = workshop.write(_HANDLERS)
    async with workshop.start("-A", "--standalone", file, **variables) as command:
        async with connect(cluster) as client:
            await eventually(partial(_are_in_force, client, kind), "the webhooks in force")
        yield Walk(workshop.folder, kind, port, command)
        assert await command.stop() == 0


async def _are_in_force(client: Client, kind: Kind) -> bool:
    """Tell whether the API server goes by both of the configurations."""

    async def try_out(spec: Json) -> Json:
        body = {"apiVersion": f"{kind.group}/v1", "kind": kind.kind, "spec": spec}
        body["metadata"] = {"name": "try"}
        url = kind.resource.get_url(namespace="default")
        answer: Json = await client.request("POST", url, params={"dryRun": "All"}, body=body)
        return answer

    is_mutated = "numbers" in (await try_out({}))["spec"]
    try:
        await try_out({"numbers": [101]})
    except APIStatusError:
        return is_mutated
    return False


@pytest.mark.feature("ADM-25", "ADM-26", "ADM-77", "ADM-88", "ADM-89")
async def test_the_walk_with_curl_and_a_client_certificate(
    workshop: Workshop, webop_cluster: LocalCluster
) -> None:
    kind = Kind("curl.tests.webop.dev", "curlexamples", "CurlExample", shortcut="crx")
    async with walk(workshop, webop_cluster, kind) as site:
        text = _REVIEW.replace("GROUP", kind.group).replace("KIND", kind.kind)
        (workshop.folder / "review.json").write_text(text.replace("PLURAL", kind.plural))
        url = f"https://ussser:passsw@localhost:{site.port}"
        identity = ("--cert", "client-cert.pem", "--key", "client-key.pem")
        command = ("curl", "--silent", "--show-error", "--insecure")
        code, output, errors = await execute(
            *(*command, *identity, url, "-d", "@review.json"), folder=workshop.folder
        )
        assert code == 0, errors
        response = json.loads(output)["response"]
        assert response["uid"] == "1ca13837-ad60-4c9e-abb8-86f29d6c0e84"
        assert response["allowed"] is True
        assert response["warnings"] == ["SSL peer is Example Common Name.", "This is a dry run."]
        for word in (
            "'Authorization': 'Basic dXNzc2VyOnBhc3Nzdw=='",
            "'Content-Type': 'application/x-www-form-urlencoded'",
            (
                "sslpeer={'subject': ((('commonName', 'Example Common Name'),), "
                "(('emailAddress', 'example@kopf.dev'),))"
            ),
        ):
            assert word in site.command.output
        code, output, errors = await execute(
            *(*command, url, "-d", "@review.json"), folder=workshop.folder
        )
        assert json.loads(output)["response"]["warnings"] == ["This is a dry run."]
        await site.command.wait_for("sslpeer=None")


@pytest.mark.feature("ADM-02", "ADM-03", "ADM-07", "ADM-22", "ADM-44")
async def test_the_walk_with_kubectl(workshop: Workshop, webop_cluster: LocalCluster) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl on this machine")
    kind = Kind("kubectl.tests.webop.dev", "ctlexamples", "CtlExample", shortcut="ctlx")
    async with walk(workshop, webop_cluster, kind) as site:
        code, output, errors = await site.kubectl(webop_cluster, "warned", {"field": "value"})
        assert code == 0, errors
        assert errors == ("Warning: The default value is used. It is okay but worth changing.\n")
        assert json.loads(output)["spec"] == {"field": "value", "numbers": [1, 2, 3]}
        code, _, errors = await site.kubectl(webop_cluster, "refused", {"numbers": [101]})
        assert code == 1
        assert errors == (
            'Error from server: error when creating "obj.yaml": admission webhook '
            f'"numbers-range.{kind.group}" denied the request: Numbers must be below 0..100.\n'
        )
        code, output, errors = await site.kubectl(webop_cluster, "dry", {}, "--dry-run=server")
        assert code == 0
        assert errors == "Warning: This is a dry run.\n"
        assert json.loads(output)["spec"] == {"numbers": [1, 2, 3]}
        code, output, _ = await execute(
            *("kubectl", "get", kind.plural, "-o", "name"),
            folder=workshop.folder,
            KUBECONFIG=str(webop_cluster.kubeconfig),
        )
        assert output.split() == [f"{kind.kind.lower()}.{kind.group}/warned"]
