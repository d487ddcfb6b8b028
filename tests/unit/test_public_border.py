"""The public names: what is promised to users, and what importing them costs."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from typing import Any

import pytest

import webop
import webop.lifecycles
import webop.on

kopf = webop  # as in the manual

DOCUMENTED = {
    # Handlers
    *("daemon", "timer", "index", "subhandler", "register", "execute", "on", "lifecycles"),
    *("set_default_lifecycle", "get_default_lifecycle", "ErrorsMode", "Reason"),
    *("OperatorRegistry", "get_default_registry", "set_default_registry"),
    *("PRESENT", "ABSENT", "EVERYTHING", "not_", "any_", "all_", "none_"),
    # Errors
    *("PermanentError", "TemporaryError", "AdmissionError", "LoginError"),
    *("HandlerTimeoutError", "HandlerRetriesError"),
    # Objects
    *("Body", "Spec", "Status", "Meta", "Labels", "Annotations", "BodyEssence", "Patch", "PatchFn"),
    *("RawBody", "RawEvent", "RawEventType", "Diff", "DiffItem", "DiffOperation", "Resource"),
    *("ObjectReference", "OwnerReference", "FieldSpec", "FieldPath", "Memo"),
    *("build_object_reference", "build_owner_reference"),
    *("append_owner_reference", "remove_owner_reference"),
    *("adopt", "label", "harmonize_naming", "adjust_namespace"),
    # Settings
    *("OperatorSettings", "DiffBaseStorage", "AnnotationsDiffBaseStorage"),
    *("StatusDiffBaseStorage", "MultiDiffBaseStorage", "ProgressRecord", "ProgressStorage"),
    *("AnnotationsProgressStorage", "StatusProgressStorage", "MultiProgressStorage"),
    "SmartProgressStorage",
    # Running
    *("run", "operator", "spawn_tasks", "run_tasks", "create_app", "configure", "LogFormat"),
    *("event", "info", "warn", "exception", "Logger", "ObjectLogger", "LocalObjectLogger"),
    *("ConnectionInfo", "AiohttpSession", "Vault", "login_via_pykube", "login_via_client"),
    "login_via_async_client",
    *("login_with_kubeconfig", "login_with_service_account"),
    # Admission
    *("WebhookServer", "WebhookK3dServer", "WebhookMinikubeServer", "WebhookClientConfig"),
    *("HandlerId", "LabelSelector", "Operation", "UserInfo", "WebhookDockerDesktopServer"),
    *("WebhookNgrokTunnel", "WebhookAutoServer", "WebhookAutoTunnel"),
    *("WebhookClientConfigService", "WebhookFn", "WebhookServerProtocol", "Headers", "SSLPeer"),
}


@pytest.mark.feature("REF-72", "REF-73", "REF-75", "REF-76", "ARC-01", "D-35")
def test_the_documented_names_are_public() -> None:
    assert set(webop.__all__) >= DOCUMENTED
    assert len(set(webop.__all__)) == len(webop.__all__)


def test_all_public_names_are_there() -> None:
    for name in webop.__all__:
        assert getattr(webop, name) is not None
    namespace: dict[str, Any] = {}
    exec("from webop import *", namespace)
    assert namespace.keys() >= set(webop.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'nonexistent'"):
        webop.nonexistent  # noqa: B018


@pytest.mark.feature("REF-75", "EVT-04")
def test_names_in_annotations_of_the_manual_can_be_evaluated() -> None:
    def fn(
        spec: kopf.Spec, body: kopf.Body, patch: kopf.Patch, diff: kopf.Diff, logger: kopf.Logger
    ) -> None: ...

    assert inspect.get_annotations(fn, eval_str=True)["spec"] is webop.Spec


OPERATOR = [
    *("lifecycle", "indexers", "registry", "settings", "memories", "insights", "identity"),
    *("standalone", "priority", "peering_name", "liveness_endpoint", "clusterwide"),
    *("namespaces", "namespace", "stop_flag", "ready_flag", "vault", "memo"),
    *("metrics_endpoint", "status_endpoint"),  # webop's own
]
PARAMETERS = {
    "configure": ["debug", "verbose", "quiet", "log_format", "log_prefix", "log_refkey"],
    "execute": ["fns", "handlers", "registry", "lifecycle", "cause"],
    "event": ["objs", "type", "reason", "message", "backoffs"],
    "info": ["objs", "reason", "message", "backoffs"],
    "warn": ["objs", "reason", "message", "backoffs"],
    "exception": ["objs", "reason", "message", "exc", "backoffs"],
    "run": ["loop", *OPERATOR],
    "operator": OPERATOR,
    "spawn_tasks": OPERATOR,
    "run_tasks": ["root_tasks", "ignored"],
    "adopt": ["objs", "owner", "forced", "strict", "nested"],
    "label": ["objs", "labels", "forced", "nested", "force"],
}


@pytest.mark.feature("REF-14", "REF-15", "REF-21", "REF-22", "REF-23", "REF-24", "REF-74", "D-30")
@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items())
def test_functions_have_the_documented_parameters(name: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(webop, name)).parameters) == parameters


@pytest.mark.feature("EMB-07", "REF-21", "REF-23", "REF-24")
@pytest.mark.parametrize("fn", ["operator", "spawn_tasks"])
async def test_an_unknown_option_of_an_operator_is_told_of(fn: str) -> None:
    with pytest.raises(TypeError, match=r"clusterwise.*clusterwide"):
        await getattr(webop, fn)(clusterwise=True)


@pytest.mark.feature("EMB-07", "EMB-06")
def test_an_unknown_option_of_run_is_told_of() -> None:
    with pytest.raises(TypeError, match=r"regsitry.*registry"):
        webop.run(regsitry=webop.OperatorRegistry())  # type: ignore[call-arg]


HEAVY = ("httpx", "aiohttp", "starlette", "uvicorn", "cryptography", "click", "yaml", "pyngrok")
MEASURE = """
import json, resource, sys
import {modules}
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({{"cpu": usage.ru_utime + usage.ru_stime, "modules": sorted(sys.modules)}}))
"""


def measure_import(modules: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE.format(modules=modules)],
        capture_output=True,
        text=True,
        check=True,
    )
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def measure_cpu(modules: str) -> float:
    """Return the CPU seconds of a process that imports modules: the least of three."""
    samples: list[float] = [measure_import(modules)["cpu"] for _ in range(3)]
    return min(samples)


def test_importing_brings_no_http_and_no_cryptography() -> None:
    loaded = set(measure_import("webop")["modules"])
    assert loaded.isdisjoint(HEAVY)


def test_importing_is_fast() -> None:
    cpu = measure_cpu("webop")
    # On a busy machine everything takes longer: then what cannot be helped is the measure.
    assert cpu < 0.35 or cpu < 3.3 * measure_cpu("asyncio, pydantic")
