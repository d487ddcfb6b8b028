"""The demo from start to end: start everything, run the steps, then serve until Ctrl-C."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import yaml
from environment import EXAMPLE, HERE, ApiServer, DemoError, Operator, run_operator, wait_for
from output import Checks, write
from steps import EVCS, STEPS, Scenario, get_field, wait_for_webhooks

from webop.errors import WebopError
from webop.testing import LocalCluster

_CRD = EXAMPLE.parents[1] / "manifests" / "ephemeral_volume_claims.crd.yaml"
_STORAGE_CLASS = HERE / "storageclass.yaml"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_STORAGE_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
_ESTABLISHING = 10.0  # seconds for the API server to serve a new kind


def run_demo(handlers: Path, *, once: bool) -> int:
    """Run the demo. Stop everything at the end, also after an error.

    Args:
        handlers: the file with the handlers.
        once: whether to stop after the last step, instead of serving until Ctrl-C.

    Returns:
        0 if all checks passed, else 1.
    """
    write("An operator with admission webhooks, on a local Kubernetes API server.", "bold")
    checks = Checks()
    try:
        with ExitStack() as stack:
            cluster = stack.enter_context(LocalCluster())
            api = stack.enter_context(ApiServer(cluster.server, cluster.token, cluster.ca_data))
            operator = _start(cluster, api, handlers, stack)
            scenario = Scenario(api, operator, checks)
            for step in STEPS:
                step(scenario)
            _summarize(checks)
            if not once:
                _serve(cluster, api, operator)
    except (DemoError, WebopError, httpx.HTTPError) as exc:
        write(f"\n\N{BALLOT X} {exc}", "red")
        return 1
    return int(bool(checks.failures))


def _start(cluster: LocalCluster, api: ApiServer, handlers: Path, stack: ExitStack) -> Operator:
    """Start everything, and print what is running.

    Raises:
        DemoError: something did not start.
    """
    _report("control plane", f"Kubernetes {cluster.version} at {cluster.server} ({cluster.source})")
    _report("CRD", _create(api, _CRDS, _CRD))
    _report("storage class", _create(api, _STORAGE_CLASSES, _STORAGE_CLASS))
    if not wait_for(lambda: api.request("GET", EVCS).status == 200, _ESTABLISHING):
        raise DemoError(f"The API server did not serve the new kind within {_ESTABLISHING:g} s.")
    log = cluster.logs / "operator.log"
    operator = stack.enter_context(run_operator(handlers, cluster.kubeconfig, log))
    # Started earlier, the garbage collector would notice the new kind half a minute later.
    cluster.start_controller_manager()
    _report("garbage collector", "kube-controller-manager")
    operator.wait_until_ready()
    wait_for_webhooks(api, operator)
    _report("operator", f"webop run {_shorten(handlers)} (process {operator.pid})")
    _report("webhooks", f"managed, over TLS, at {find_webhook(api)}")
    _report("log of the operator", str(log))
    return operator


def _create(api: ApiServer, path: str, manifest: Path) -> str:
    """Create the object of a manifest and return its name.

    Raises:
        DemoError: the API server refused it.
    """
    response = api.request("POST", path, yaml.safe_load(manifest.read_text()))
    if response.status != 201:
        raise DemoError(f"The API server refused {manifest.name}: {response.body}")
    return str(response.body["metadata"]["name"])


def find_webhook(api: ApiServer) -> str:
    """Return the address of the webhooks from the webhook configuration."""
    configurations = api.request("GET", _WEBHOOKS).body["items"]
    url = get_field(configurations, "0.webhooks.0.clientConfig.url") or "(nowhere)"
    return str(url).rpartition("/")[0]


def _summarize(checks: Checks) -> None:
    write()
    if checks.failures:
        write("\N{BALLOT X} Some checks failed:", "red")
        for failure in checks.failures:
            write(f"  {failure}", "red")
    else:
        write("\N{CHECK MARK} All checks passed.", "green")


def _serve(cluster: LocalCluster, api: ApiServer, operator: Operator) -> None:
    """Print commands to try, and wait for Ctrl-C.

    Raises:
        DemoError: the operator has stopped.
    """
    here = _shorten(EXAMPLE)
    write(
        f"""
The operator keeps running. To try more, enter in another terminal:

  export KUBECONFIG={cluster.kubeconfig}
  kubectl apply -f {here}/evc.yaml
  kubectl get evc,pvc
  kubectl patch evc my-claim --type merge -p '{{"spec": {{"size": "3G"}}}}'
  kubectl patch evc my-claim --type merge -p '{{"spec": {{"size": "1M"}}}}'    # is denied
  kubectl get events

  curl --insecure {find_webhook(api)}/check-size -d @{here}/refused.json
  curl {operator.probes}/healthz
  curl {operator.probes}/readyz
  tail -f {operator.log}

Ctrl-C stops the operator and the control plane."""
    )
    try:
        while True:
            operator.check()
            time.sleep(0.2)
    except KeyboardInterrupt:
        write("\nStopping.")


def _shorten(path: Path) -> str:
    """Return a path relative to the current folder, if it is in it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _report(what: str, details: str) -> None:
    write(f"  \N{CHECK MARK} {what}: {details}", "green")
