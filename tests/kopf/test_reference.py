"""The public names take what those of the peer take: options, parameters, defaults, members."""

from __future__ import annotations

import enum
import inspect
import operator
from collections.abc import Collection, Mapping
from typing import Any, get_args

import pytest

import webop

kopf = pytest.importorskip("kopf", reason="Kopf comes with the extra 'dev'.")

# Parameters that the manual does not have: they have come to Kopf since.
NEWER = {"backoffs", "file_check_interval", "queueing"}

ROWS = {
    "REF-01": "on.startup on.cleanup on.login on.probe",
    "REF-02": "on.validate on.mutate",
    "REF-03": "on.resume",
    "REF-04": "on.create",
    "REF-05": "on.update",
    "REF-06": "on.delete",
    "REF-07": "on.field",
    "REF-08": "on.index",
    "REF-09": "on.event",
    "REF-10": "on.daemon",
    "REF-11": "on.timer",
    "REF-12": "on.subhandler",
    "REF-14": "execute",
    "REF-15": "configure",
    "REF-17": "login_via_pykube login_via_client",
    "REF-18": "login_with_kubeconfig login_with_service_account",
    "REF-20": "ConnectionInfo",
    "REF-21": "spawn_tasks",
    "REF-22": "run_tasks",
    "REF-23": "operator",
    "REF-24": "run",
    "REF-25": "adopt",
    "REF-26": "label",
    "REF-27": "harmonize_naming",
    "REF-28": "adjust_namespace",
    "REF-29": "set_default_lifecycle",
    "REF-31": "build_object_reference",
    "REF-32": "build_owner_reference",
    "REF-33": "append_owner_reference",
    "REF-34": "remove_owner_reference",
    "REF-36": "AdmissionError",
    "REF-39": "WebhookServer",
    "REF-40": "WebhookK3dServer",
    "REF-41": "WebhookMinikubeServer",
    "REF-42": "WebhookNgrokTunnel",
    "REF-43": "WebhookAutoServer",
    "REF-44": "WebhookAutoTunnel",
    "REF-48": "OperatorRegistry",
    "REF-49": "get_default_registry set_default_registry",
    "REF-52": "AnnotationsDiffBaseStorage",
    "REF-53": "StatusDiffBaseStorage",
    "REF-54": "MultiDiffBaseStorage",
    "REF-57": "AnnotationsProgressStorage",
    "REF-58": "StatusProgressStorage",
    "REF-59": "MultiProgressStorage",
    "REF-60": "SmartProgressStorage",
    "REF-64": "ObjectLogger",
    "REF-65": "LocalObjectLogger",
    "REF-71": "Resource",
    "REF-74": "event info warn exception",
}
"""The rows of the manual about functions, decorators and classes."""

KNOWN = {name: row for row, names in ROWS.items() for name in names.split()}
DECORATORS = [name.removeprefix("on.") for name in KNOWN if name.startswith("on.")]
OTHERS = [
    f"{place}.{name}".lstrip(".")
    for place in ("", "on", "lifecycles")
    for name, value in vars(getattr(kopf, place) if place else kopf).items()
    if not name.startswith("_")
    and (inspect.isfunction(value) or inspect.isclass(value))
    and (name in kopf.__all__ or value.__module__ == f"kopf.{place}")
]


def mark(name: str) -> Any:
    rows = [pytest.mark.feature(KNOWN[name])] if name in KNOWN else []
    return pytest.param(name, marks=rows, id=name)


def get_parameters(item: Any) -> Mapping[str, inspect.Parameter]:
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    parameters = inspect.signature(item).parameters
    return {
        key: value
        for key, value in parameters.items()
        if value.kind not in kinds and not key.startswith("_")
    }


@pytest.mark.feature("REF-76", "D-30")
@pytest.mark.parametrize("name", [mark(name) for name in dict.fromkeys([*KNOWN, *OTHERS])])
def test_parameters_of_the_peer_are_there_with_their_defaults(name: str) -> None:
    """Whatever can be given to the peer's function can be given to ours."""
    our, their = (operator.attrgetter(name)(module) for module in (webop, kopf))
    try:
        theirs = get_parameters(their)
    except ValueError:
        return  # of a class that has no signature, such as an error
    ours = get_parameters(our)
    takes_any = any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD
        for parameter in inspect.signature(our).parameters.values()
    )
    assert takes_any or set(theirs) - set(ours) <= NEWER
    for key in set(theirs) & set(ours) if name in KNOWN else ():
        default = theirs[key].default
        if isinstance(default, enum.Enum):  # a member of another class of the same name
            assert getattr(ours[key].default, "name", None) in (default.name, None)
        elif default is inspect.Parameter.empty:
            assert ours[key].kind is not inspect.Parameter.POSITIONAL_ONLY
        else:
            assert ours[key].default == default


@pytest.mark.parametrize("name", DECORATORS)
def test_decorators_take_all_options_of_the_peer(name: str) -> None:
    options = dict.fromkeys(get_parameters(getattr(kopf.on, name)))
    required: dict[str, Any] = {"field": "spec"} if name == "field" else {}
    selectors = {"plural": "things"} if "plural" in options else {}
    getattr(webop.on, name)(**{**options, **selectors, **required})


@pytest.mark.feature("REF-45", "REF-46", "REF-47", "REF-36")
def test_errors_are_of_the_same_descent() -> None:
    errors = ("PermanentError", "TemporaryError", "HandlerTimeoutError", "HandlerRetriesError")
    for name in (*errors, "AdmissionError"):
        ours, theirs = getattr(webop, name), getattr(kopf, name)
        assert issubclass(ours, webop.PermanentError) == issubclass(theirs, kopf.PermanentError)
    assert webop.TemporaryError("later").delay == kopf.TemporaryError("later").delay == 60
    assert webop.AdmissionError("no").code == kopf.AdmissionError("no").code == 500


@pytest.mark.feature("REF-37", "REF-38", "REF-39")
def test_what_webhook_servers_are_made_of_is_the_same() -> None:
    for name in ("WebhookClientConfig", "WebhookClientConfigService"):
        assert set(getattr(webop, name).__annotations__) == set(getattr(kopf, name).__annotations__)
    assert list(inspect.signature(webop.WebhookFn.__call__).parameters) == list(
        inspect.signature(kopf.WebhookFn.__call__).parameters
    )
    builders = [module.WebhookServer.build_certificate for module in (webop, kopf)]
    assert [list(inspect.signature(item).parameters) for item in builders] == [
        ["hostnames", "password"]
    ] * 2


@pytest.mark.feature("IDX-04", "REF-62", "REF-63")
def test_indexes_are_read_only_collections_for_annotations() -> None:
    assert issubclass(webop.Index, Mapping)
    assert issubclass(webop.Store, Collection)
    assert get_args(webop.Index[str, int]) == (str, int)
    assert get_args(webop.Store[int]) == (int,)
    assert not hasattr(webop.Index, "__setitem__")
    assert not hasattr(webop.Store, "append")
