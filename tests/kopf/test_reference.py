"""The public names take what those of the peer take: options, parameters, defaults, members."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Collection, Mapping
from typing import Any, get_args

import pytest

import webop

# Parameters that the manual does not have: they have come to Kopf since.
NEWER = {"backoffs", "file_check_interval"}

FUNCTIONS = [
    ("execute", "REF-14"),
    ("configure", "REF-15"),
    ("login_via_pykube", "REF-17"),
    ("login_via_client", "REF-17"),
    ("login_with_kubeconfig", "REF-18"),
    ("login_with_service_account", "REF-18"),
    ("ConnectionInfo", "REF-20"),
    ("spawn_tasks", "REF-21"),
    ("run_tasks", "REF-22"),
    ("operator", "REF-23"),
    ("run", "REF-24"),
    ("adopt", "REF-25"),
    ("label", "REF-26"),
    ("harmonize_naming", "REF-27"),
    ("adjust_namespace", "REF-28"),
    ("set_default_lifecycle", "REF-29"),
    ("build_object_reference", "REF-31"),
    ("build_owner_reference", "REF-32"),
    ("append_owner_reference", "REF-33"),
    ("remove_owner_reference", "REF-34"),
    ("AdmissionError", "REF-36"),
    ("WebhookServer", "REF-39"),
    ("WebhookK3dServer", "REF-40"),
    ("WebhookMinikubeServer", "REF-41"),
    ("WebhookNgrokTunnel", "REF-42"),
    ("WebhookAutoServer", "REF-43"),
    ("WebhookAutoTunnel", "REF-44"),
    ("OperatorRegistry", "REF-48"),
    ("get_default_registry", "REF-49"),
    ("set_default_registry", "REF-49"),
    ("AnnotationsDiffBaseStorage", "REF-52"),
    ("StatusDiffBaseStorage", "REF-53"),
    ("MultiDiffBaseStorage", "REF-54"),
    ("AnnotationsProgressStorage", "REF-57"),
    ("StatusProgressStorage", "REF-58"),
    ("MultiProgressStorage", "REF-59"),
    ("SmartProgressStorage", "REF-60"),
    ("ObjectLogger", "REF-64"),
    ("LocalObjectLogger", "REF-65"),
    ("Resource", "REF-71"),
    ("event", "REF-74"),
    ("info", "REF-74"),
    ("warn", "REF-74"),
    ("exception", "REF-74"),
]

DECORATORS = [
    *((name, "REF-01") for name in ("startup", "cleanup", "login", "probe")),
    *((name, "REF-02") for name in ("validate", "mutate")),
    ("resume", "REF-03"),
    ("create", "REF-04"),
    ("update", "REF-05"),
    ("delete", "REF-06"),
    ("field", "REF-07"),
    ("index", "REF-08"),
    ("event", "REF-09"),
    ("daemon", "REF-10"),
    ("timer", "REF-11"),
    ("subhandler", "REF-12"),
]


@pytest.fixture(scope="module")
def kopf() -> Any:
    """The peer of this interpreter, not of WEBOP_PEER_PYTHON: live objects are compared."""
    return pytest.importorskip("kopf")


def mark(pairs: Collection[tuple[str, str]]) -> list[Any]:
    """Return sets of one parameter, the name, that show the row."""
    return [pytest.param(name, marks=pytest.mark.feature(row), id=name) for name, row in pairs]


def get_parameters(item: Any) -> Mapping[str, inspect.Parameter]:
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    parameters = inspect.signature(item).parameters
    return {
        key: value
        for key, value in parameters.items()
        if value.kind not in kinds and not key.startswith("_")
    }


@pytest.mark.parametrize("name", mark(FUNCTIONS))
def test_parameters_of_the_peer_are_there_with_their_defaults(name: str, kopf: Any) -> None:
    compare_parameters(getattr(webop, name), getattr(kopf, name))


@pytest.mark.parametrize("name", mark(DECORATORS))
def test_options_of_the_peer_are_there_with_their_defaults(name: str, kopf: Any) -> None:
    compare_parameters(getattr(webop.on, name), getattr(kopf.on, name))


def compare_parameters(our: Any, their: Any) -> None:
    """Check that whatever can be given to the peer's function can be given to ours."""
    ours, theirs = get_parameters(our), get_parameters(their)
    takes_any = any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD and parameter.annotation == "Any"
        for parameter in inspect.signature(our).parameters.values()
    )
    assert takes_any or set(theirs) - set(ours) <= NEWER
    for key in set(theirs) & set(ours):
        default = theirs[key].default
        if isinstance(default, enum.Enum):  # a member of another class of the same name
            assert getattr(ours[key].default, "name", None) in (default.name, None)
        elif default is inspect.Parameter.empty:
            assert ours[key].kind is not inspect.Parameter.POSITIONAL_ONLY
        else:
            assert ours[key].default == default


@pytest.mark.parametrize("name", mark(DECORATORS))
def test_decorators_take_all_options_of_the_peer(name: str, kopf: Any) -> None:
    options = dict.fromkeys(get_parameters(getattr(kopf.on, name)))
    required: dict[str, Any] = {"field": "spec"} if name == "field" else {}
    selectors = {"plural": "things"} if "plural" in options else {}
    getattr(webop.on, name)(**{**options, **selectors, **required})


@pytest.mark.feature("REF-45", "REF-46", "REF-47", "REF-36")
def test_errors_are_of_the_same_descent(kopf: Any) -> None:
    errors = ("PermanentError", "TemporaryError", "HandlerTimeoutError", "HandlerRetriesError")
    for name in (*errors, "AdmissionError"):
        ours, theirs = getattr(webop, name), getattr(kopf, name)
        assert issubclass(ours, webop.PermanentError) == issubclass(theirs, kopf.PermanentError)
    assert webop.TemporaryError("later").delay == kopf.TemporaryError("later").delay == 60
    assert webop.AdmissionError("no").code == kopf.AdmissionError("no").code == 500


@pytest.mark.feature("REF-37", "REF-38", "REF-39")
def test_what_webhook_servers_are_made_of_is_the_same(kopf: Any) -> None:
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
