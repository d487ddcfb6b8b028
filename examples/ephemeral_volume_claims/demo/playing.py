"""The demo from the start to the end: the stage is set, the story told, the doors left open."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import yaml
from stage import EXAMPLE, HERE, ApiServer, DemoError, Operator, run_operator, wait_for
from story import EVCS, STEPS, Story, await_webhooks, dig
from telling import Verdicts, say

from webop.errors import WebopError
from webop.testing import LocalCluster

_CRD = EXAMPLE.parents[1] / "manifests" / "ephemeral_volume_claims.crd.yaml"
_STORAGE_CLASS = HERE / "storageclass.yaml"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_STORAGE_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
_ESTABLISHING = 10.0  # seconds for the API server to serve a new kind


def play(handlers: Path, *, once: bool) -> int:
    """Play the demo; everything is stopped at the end, however it comes.

    Args:
        handlers: the file with the handlers.
        once: whether to end after the story, or to serve until Ctrl-C.

    Returns:
        0 if everything has come out as it should, else 1.
    """
    say("An operator with admission webhooks, on a real Kubernetes API server of its own.", "bold")
    verdicts = Verdicts()
    try:
        with ExitStack() as stack:
            cluster = stack.enter_context(LocalCluster())
            api = stack.enter_context(ApiServer(cluster.server, cluster.token, cluster.ca_data))
            operator = _set_stage(cluster, api, handlers, stack)
            story = Story(api, operator, verdicts)
            for step in STEPS:
                step(story)
            _conclude(verdicts)
            if not once:
                _serve(cluster, api, operator)
    except (DemoError, WebopError, httpx.HTTPError) as exc:
        say(f"\n\N{BALLOT X} {exc}", "red")
        return 1
    return int(bool(verdicts.differences))


def _set_stage(cluster: LocalCluster, api: ApiServer, handlers: Path, stack: ExitStack) -> Operator:
    """Bring everything up, and tell what there is.

    Raises:
        DemoError: something does not come up.
    """
    _tell("control plane", f"Kubernetes {cluster.version} at {cluster.server} ({cluster.source})")
    _tell("CRD", _create(api, _CRDS, _CRD))
    _tell("storage class", _create(api, _STORAGE_CLASSES, _STORAGE_CLASS))
    if not wait_for(lambda: api.request("GET", EVCS).status == 200, _ESTABLISHING):
        raise DemoError(f"The CRD is not served after {_ESTABLISHING:g} s.")
    log = cluster.logs / "operator.log"
    operator = stack.enter_context(run_operator(handlers, cluster.kubeconfig, log))
    # Not earlier: the garbage collection would notice the new kind only half a minute later.
    cluster.start_controller_manager()
    _tell("garbage collection", "kube-controller-manager")
    operator.wait_until_ready()
    await_webhooks(api, operator)
    _tell("operator", f"webop run {_shorten(handlers)} (process {operator.pid})")
    _tell("webhooks", f"managed, over TLS, at {find_webhook(api)}")
    _tell("its log", str(log))
    return operator


def _create(api: ApiServer, path: str, manifest: Path) -> str:
    """Create the object of a manifest, and return its name.

    Raises:
        DemoError: the API server does not take it.
    """
    answer = api.request("POST", path, yaml.safe_load(manifest.read_text()))
    if answer.status != 201:
        raise DemoError(f"{manifest.name} is not accepted: {answer.body}")
    return str(answer.body["metadata"]["name"])


def find_webhook(api: ApiServer) -> str:
    """Return the address of the webhooks, as the API server has it."""
    configurations = api.request("GET", _WEBHOOKS).body["items"]
    url = dig(configurations, "0.webhooks.0.clientConfig.url") or "(nowhere)"
    return str(url).rpartition("/")[0]


def _conclude(verdicts: Verdicts) -> None:
    say()
    if verdicts.differences:
        say("\N{BALLOT X} Not everything has come out as it should:", "red")
        for difference in verdicts.differences:
            say(f"  {difference}", "red")
    else:
        say("\N{CHECK MARK} Everything has come out as it should.", "green")


def _serve(cluster: LocalCluster, api: ApiServer, operator: Operator) -> None:
    """Say what to try, and wait for Ctrl-C.

    Raises:
        DemoError: the operator has ended.
    """
    here = _shorten(EXAMPLE)
    say(
        f"""
It keeps running. To try things yourself, type in another terminal:

  export KUBECONFIG={cluster.kubeconfig}
  kubectl apply -f {here}/evc.yaml
  kubectl get evc,pvc
  kubectl patch evc my-claim --type merge -p '{{"spec": {{"size": "3G"}}}}'
  kubectl patch evc my-claim --type merge -p '{{"spec": {{"size": "1M"}}}}'    # is refused
  kubectl get events

  curl --insecure {find_webhook(api)}/check-size -d @{here}/refused.json
  curl {operator.probes}/healthz
  curl {operator.probes}/readyz
  tail -f {operator.log}

Ctrl-C stops everything."""
    )
    try:
        while True:
            operator.check()
            time.sleep(0.2)
    except KeyboardInterrupt:
        say("\nStopping.")


def _shorten(path: Path) -> str:
    """Return a path as one would type it from here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _tell(what: str, details: str) -> None:
    say(f"  \N{CHECK MARK} {what}: {details}", "green")
