"""Settings: their defaults, what they refuse, and the environment (chapter "Configuration")."""

from __future__ import annotations

import itertools
import logging
import operator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from typing import Any

import click
import pytest

import webop
from tests.kit.rows import rows
from webop import OperatorSettings
from webop.app import build_options as build_app_options
from webop.cli import main
from webop.embedding import build_options as build_embedding_options
from webop.errors import ConfigurationError
from webop.settings.base import SettingError, find_setting_problem
from webop.settings.environment import OPTION_NAMES


def read(settings: OperatorSettings, path: str) -> Any:
    group, name = path.split(".")
    return getattr(getattr(settings, group), name)


@pytest.mark.feature("CFG-36", "CFG-37", "CFG-38")
@rows("variables", [{}, {"WEBOP_PERSISTENCE__PREFIX": "old.example.com"}])
def test_a_prefix_sets_the_finalizer_and_both_storages(variables: dict[str, str]) -> None:
    persistence = OperatorSettings.from_environment(variables).persistence
    assert persistence.prefix == variables.get("WEBOP_PERSISTENCE__PREFIX")
    persistence.prefix = "shop.example.com"
    progress, diffbase = persistence.progress_storage, persistence.diffbase_storage
    assert isinstance(progress, webop.AnnotationsProgressStorage)
    assert isinstance(diffbase, webop.AnnotationsDiffBaseStorage)
    assert persistence.finalizer == "shop.example.com/finalizer"
    assert persistence.prefix == progress.prefix == diffbase.prefix == "shop.example.com"


def test_a_prefix_and_what_it_sets_exclude_each_other() -> None:
    persistence, storage = OperatorSettings().persistence, webop.StatusDiffBaseStorage()
    persistence.diffbase_storage = storage
    with pytest.raises(SettingError, match="diffbase_storage is set already") as caught:
        persistence.prefix = "shop.example.com"
    assert "test_settings.py, line" in str(find_setting_problem(caught.value))
    assert persistence.diffbase_storage is storage
    persistence = OperatorSettings().persistence
    persistence.prefix = "shop.example.com"
    with pytest.raises(SettingError, match=r"persistence\.prefix is set already"):
        persistence.diffbase_storage = storage


@pytest.mark.feature("CFG-19", "CFG-20", "CFG-39")
def test_settings_without_effect_are_accepted_with_a_warning_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = OperatorSettings.from_environment({"WEBOP_PERSISTENCE__CONSISTENCY_TIMEOUT": "1"})
    settings.batching.idle_timeout = 5
    settings.queueing.batch_window = 0.5
    assert settings.persistence.consistency_timeout == 1
    assert settings.batching.batch_window == 0.5
    names = ("consistency_timeout", "idle_timeout", "batch_window")
    assert caplog.messages == [
        f"The setting {name} has no effect in webop. Remove it." for name in names
    ]


@pytest.mark.feature("D-23")
def test_the_newer_name_of_batching_works() -> None:
    settings = OperatorSettings()
    settings.queueing.worker_limit = 5
    assert settings.batching.worker_limit == 5


@pytest.mark.feature("CFG-12")
def test_namespaced_is_the_opposite_of_clusterwide() -> None:
    settings = OperatorSettings()
    settings.peering.namespaced = False
    assert settings.peering.clusterwide


@pytest.mark.feature("CFG-26", "CFG-27", "D-22")
def test_the_number_of_threads_can_be_changed() -> None:
    settings = OperatorSettings()
    before = settings.execution.executor
    assert isinstance(before, ThreadPoolExecutor)
    assert before._max_workers == ThreadPoolExecutor()._max_workers
    settings.execution.max_workers = 3
    assert settings.execution.max_workers == 3
    assert settings.execution.executor is not before
    with pytest.raises(ValueError, match="must be at least 1"):
        settings.execution.max_workers = 0
    own = ThreadPoolExecutor(max_workers=7)
    settings.execution.executor = own
    assert settings.execution.max_workers == 7


@pytest.mark.feature("CFG-22", "CFG-34", "CFG-53")
@rows("value", [[], 5, [1, 2.5], itertools.count()])
def test_delays_are_numbers_or_anything_to_iterate_over(value: Any) -> None:
    settings = OperatorSettings()
    settings.batching.error_delays = value
    settings.networking.error_backoffs = value
    assert settings.batching.error_delays is value
    assert settings.networking.error_backoffs is value


@pytest.mark.feature("CFG-51", "REF-50")
@rows(
    ("section", "name", "value"),
    [
        ("posting", "enabled", "maybe"),
        ("batching", "worker_limit", 0),
        ("watching", "reconnect_backoff", float("nan")),
        ("batching", "error_delays", "1,2"),
        ("admission", "managed", "bad name!"),
        ("networking", "rights", ["secrets"]),
        # False is not "no limit", nor is infinity; there is None.
        ("networking", "connect_timeout", False),
        ("admission", "replica_lifetime", float("inf")),  # no record could hold it
        ("admission", "replica_lifetime", 10**400),  # more than a float can be
        ("persistence", "prefix", "Shop/x"),
        ("peering", "lifetime", 0),
    ],
)
def test_values_and_names_that_do_not_fit_are_refused_at_once(
    section: str, name: str, value: Any
) -> None:
    with pytest.raises(SettingError, match=name):
        setattr(getattr(OperatorSettings(), section), name, value)


@rows(
    ("section", "name", "value", "message"),
    [
        ("networking", "requst_timeout", 5, "did you mean 'request_timeout'"),
        ("operator", "name", "My_Shop", "1 to 63 lowercase letters, digits"),
        ("execution", "max_workers", "5", "number of threads .* must be an integer"),
        ("posting", "rate", float("nan"), r"nan is invalid: it must be a number\.$"),
    ],
)
def test_what_does_not_fit_is_told_in_code_with_what_would(
    section: str, name: str, value: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        setattr(getattr(OperatorSettings(), section), name, value)


@rows("value", [Decimal("1.5"), Fraction(3, 2), "1.5"])
def test_a_time_can_be_a_number_of_any_class(value: Any) -> None:
    settings = OperatorSettings()
    settings.networking.request_timeout = value
    assert settings.networking.request_timeout == 1.5


@rows(
    ("path", "message"),
    [
        ("postin", r"There is no setting settings\.postin, did you mean 'posting'\?"),
        ("posting.levle", r"There is no setting settings\.posting\.levle, did you mean 'level'\?"),
    ],
)
def test_a_setting_or_a_group_that_does_not_exist_is_told_when_it_is_read(
    path: str, message: str
) -> None:
    with pytest.raises(AttributeError, match=message):
        operator.attrgetter(path)(OperatorSettings())


@rows(
    ("variable", "text", "path", "value"),
    [
        ("WEBOP_POSTING__LEVEL", "30", "posting.level", 30),
        ("WEBOP_POSTING__LEVEL", "warning", "posting.level", logging.WARNING),
        ("WEBOP_WATCHING__INACTIVITY_TIMEOUT", "none", "watching.inactivity_timeout", None),
        ("WEBOP_BATCHING__ERROR_DELAYS", "1, 2.5", "batching.error_delays", (1, 2.5)),
        (
            "WEBOP_NETWORKING__RIGHTS",
            "secrets:get,list core/pods/log:get",
            "networking.rights",
            ("secrets:get,list", "core/pods/log:get"),
        ),
        ("WEBOP_POSTING__ENABLED", " false ", "posting.enabled", False),
    ],
)
def test_the_environment_sets_settings(variable: str, text: str, path: str, value: Any) -> None:
    settings = OperatorSettings.from_environment({variable: text, "HOME": "/", "WEBOP_MODULES": ""})
    assert read(settings, path) == value


MEANINGFUL = [
    *("WEBOP_MODULES", "WEBOP_ALL_NAMESPACES", "WEBOP_NAMESPACES", "WEBOP_ALIASED"),
    *("WEBOP_RUN_NAMESPACES", "WEBOP_RUN_LOG_FORMAT", "WEBOP_RUN_LEASE"),
    *("WEBOP_CACHE", "WEBOP_KUBERNETES", "WEBOP_VERSION", "OTHER__NAME", "WEBOP"),
    # What Kubernetes tells of Services called "webop" and "webop-web-hook".
    *("WEBOP_SERVICE_HOST", "WEBOP_SERVICE_PORT", "WEBOP_SERVICE_PORT_HTTPS", "WEBOP_PORT"),
    *(
        "WEBOP_PORT_443_TCP_PROTO",
        "WEBOP_WEB_HOOK_SERVICE_HOST",
        "WEBOP_WEB_HOOK_PORT_443_TCP_PORT",
    ),
]


def test_variables_that_are_no_settings_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    OperatorSettings.from_environment(dict.fromkeys(MEANINGFUL, "x"))
    OperatorSettings.from_environment({})
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("WEBOP_POSTING__LEVLE", "WEBOP_POSTING__LEVEL"),
        ("WEBOP_POSTNG__LEVEL", "WEBOP_POSTING__LEVEL"),
        ("WEBOP_MODULE", "WEBOP_MODULES"),
        ("WEBOP_STANDALONE", "WEBOP_RUN_STANDALONE"),
        ("WEBOP_POSTING__MODEL_CONFIG", None),
    ],
)
def test_a_variable_that_means_nothing_is_told_with_the_nearest_name(
    variable: str, nearest: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    settings = OperatorSettings.from_environment({variable: "30"})
    assert settings.posting.level == logging.INFO
    (message,) = caplog.messages
    assert f"unknown environment variable {variable}." in message
    hint = "No setting and no option" if nearest is None else f"Did you mean {nearest}?"
    assert hint in message


def test_variables_that_mean_nothing_are_told_by_all_ways_to_run_an_operator(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_app_options({}, {"WEBOP_RUN_NAMESPACE_": "x"})
    monkeypatch.setenv("WEBOP_MODULE", "x")
    build_embedding_options({"clusterwide": True})
    told = [message.split()[5].rstrip(".") for message in caplog.messages]
    assert told == ["WEBOP_RUN_NAMESPACE_", "WEBOP_MODULE"]


def test_the_variables_of_the_options_of_run_are_known() -> None:
    """They are listed where no command is imported: the list is compared with the commands."""
    command = main.get_command(click.Context(main), "run")
    assert command is not None
    options = [param for param in command.params if isinstance(param, click.Option)]
    names = {f"WEBOP_RUN_{each.name}".upper() for each in options if each.allow_from_autoenv}
    assert {name for name in OPTION_NAMES if "_RUN_" in name} == names


@rows(
    ("variable", "text", "named"),
    [
        ("WEBOP_BATCHING__WORKER_LIMIT", "0", "greater than or equal to 1"),
        ("WEBOP_BATCHING__ERROR_DELAYS", "1 2", "by commas, such as 1,2,5"),
        ("WEBOP_POSTING__LEVEL", "loud", "invalid: it must be a number or the name of a level"),
        ("WEBOP_EXECUTION__EXECUTOR", "threads", "in code"),
    ],
)
def test_mistakes_in_the_environment_are_told_with_the_variable(
    variable: str, text: str, named: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        OperatorSettings.from_environment({variable: text})
    assert variable in str(caught.value)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
