"""``webop check-kopf``: what it says about files of operators for Kopf, line by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.cli_runner import invoke
from tests.kit.rows import rows

PLAIN = "import kopf\n"
LAST = (
    "Files that import kopf: 1. Write 'import webop as kopf' there, "
    "or run them unchanged: webop run --aliased"
)
REPLACE = "must change: Replace the command 'kopf' by 'webop'; the options are the same."
QUIET = "settings.posting.loggers = False\n"


def check(folder: Path, code: str = PLAIN, **files: str) -> tuple[int, list[str]]:
    """Write files, with dots for underscores; return the exit code and the lines without paths."""
    (folder / "handlers.py").write_text(code)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    result = invoke("check-kopf", str(folder))
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result.exit_code, result.output.replace(f"{folder}/", "").splitlines()


PRIVATE = "is private to Kopf, and webop has no equivalent."
VERSION, SET = "from importlib.metadata import version", "setting it raises an error."
UNINSTALLED = "fails if Kopf is not installed. Use webop.__version__."


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("from kopf._x import Body", "kopf._x.Body is private to Kopf. Use webop.Body."),
        ("import kopf\nx: kopf._core.intents.X", f"kopf._core.intents.X {PRIVATE}"),
        ("import kopf as k\nk.Metta", "webop has no Metta. Did you mean webop.Meta?"),
        (f"import kopf\n{VERSION}\nversion('kopf')", f"version('kopf') {UNINSTALLED}"),
        (
            "import kopf\nsettings.batching.delayz = 1",
            f"webop has no settings.batching.delayz; {SET}",
        ),
    ],
)
def test_what_must_change_is_said_with_its_line_and_the_public_name(
    tmp_path: Path, code: str, said: str
) -> None:
    exit_code, lines = check(tmp_path, f"{code}\n{QUIET}")
    place = f"handlers.py:{len(code.splitlines())}"
    assert lines == [f"{place}: must change: {said}", "1 of these must change.", LAST]
    assert exit_code == 1


TIMER = "@kopf.timer('pods', interval=1)\ndef fn(**_):\n    raise kopf.PermanentError('no')"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "@kopf.on.create('pods', timeout=5)\nasync def fn(**_): ...",
            "timeout= also ends a running async handler; Kopf checks it between attempts only.",
        ),
        (TIMER, "PermanentError ends a timer for its object; in Kopf, the timer continues."),
        (
            "@kopf.on.create('pods', field='spec.x')\ndef fn(**_): ...",
            "field= and value= of creation handlers check the current state; Kopf, also the old.",
        ),
        (
            "@kopf.on.validate('pods', subresource='*')\ndef fn(**_): ...",
            'subresource="*" includes the object itself; in Kopf, only its subresources.',
        ),
        (
            "settings.admission.server = kopf.WebhookServer(addr='0.0.0.0')",
            "Without port=, WebhookServer uses port 9443; Kopf's, a random port.",
        ),
        *(
            (f"settings.{name} = 1", f"settings.{name} has no effect.")
            for name in ("batching.batch_window", "persistence.consistency_timeout")
        ),
    ],
)
def test_what_works_in_another_way_is_said_and_stands_in_nobodys_way(
    tmp_path: Path, code: str, said: str
) -> None:
    exit_code, lines = check(tmp_path, f"{QUIET}import kopf\n{code}\n")
    assert lines[0] == f"handlers.py:3: differs: {said}"
    assert lines[1] == "Nothing must change."
    assert exit_code == 0


@pytest.mark.parametrize(
    "code",
    [
        "@kopf.on.create('pods', timeout=5)\ndef fn(**_): ...",
        "from kopf.testing import KopfRunner\nkopf.cli.main",
        "other.settings\nsettings.peering.name = 'x'\nsettings.execution.max_workers = 5",
    ],
)
def test_nothing_is_said_of_what_is_the_same(tmp_path: Path, code: str) -> None:
    exit_code, lines = check(tmp_path, f"{QUIET}import kopf\n{code}\n")
    assert lines[:-1] == ["Nothing must change."]
    assert exit_code == 0


def test_events_are_named_where_the_loggers_are_not_set(tmp_path: Path) -> None:
    exit_code, lines = check(tmp_path)
    assert "Set settings.posting.loggers = False to disable it." in lines[0]
    assert exit_code == 0


def test_images_and_commands_are_read_as_well(tmp_path: Path) -> None:
    image = "FROM python:3.9-slim\nENV KOPF_RUN_NAMESPACE=x\nCMD kopf run -A handlers.py\n"
    image += (
        "RUN apt install git && pip install -U httpx 'kopf[full]==1.37'\nRUN helm install kopf\n"
    )
    exit_code, lines = check(
        tmp_path, PLAIN + QUIET, Dockerfile=image, requirements_txt="kopf==1.37\n"
    )
    assert lines == [
        "Dockerfile:1: must change: webop needs Python 3.11 or newer.",
        "Dockerfile:2: must change: Rename KOPF_RUN_NAMESPACE to WEBOP_RUN_NAMESPACES.",
        f"Dockerfile:3: {REPLACE}",
        "Dockerfile:4: differs: Require webop instead of kopf.",
        "requirements.txt:1: differs: Require webop instead of kopf.",
        "3 of these must change.",
        LAST,
    ]
    assert exit_code == 1


@rows(
    ("file", "text"),
    [
        ("Dockerfile", 'CMD ["kopf", "run", "-A", "handlers.py"]'),
        ("Dockerfile", 'ENTRYPOINT ["/usr/local/bin/kopf"]\nCMD ["run"]'),
        ("Dockerfile", 'CMD ["python", "-m", "kopf", "run"]'),
        ("x.yaml", "command:\n- kopf\nargs:\n- run"),
        ("x.yaml", "command:\n  - tini\n  - kopf  # yes\n  - run"),
        ("x.sh", "exec kopf freeze"),
    ],
)
def test_the_command_kopf_must_be_replaced_in_a_shell_and_in_lists_of_all_forms(
    tmp_path: Path, file: str, text: str
) -> None:
    exit_code, lines = check(tmp_path, PLAIN + QUIET, **{file.replace(".", "_"): f"\n{text}\n"})
    (tmp_path / file).unlink()
    number = 2 + text[: text.index("kopf")].count("\n")
    assert lines == [f"{file}:{number}: {REPLACE}", "1 of these must change.", LAST]
    assert exit_code == 1


@pytest.mark.parametrize(
    "text",
    [
        "app: kopf\nrun: web",
        "- name: kopf\n  image: example.com/kopf",
        "command: [kopf-tool, run]",
    ],
)
def test_other_things_named_kopf_are_not_commands(tmp_path: Path, text: str) -> None:
    exit_code, lines = check(tmp_path, PLAIN + QUIET, x_yaml=text)
    assert (exit_code, lines) == (0, ["Nothing must change.", LAST])


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys\n", "Error: No file imports kopf. Name the folder with the code of the op"),
        ("import kopf\ndef\n", "handlers.py:2: must change: Cannot parse this file as Python: inv"),
    ],
)
def test_a_folder_without_an_operator_or_with_a_syntax_error_is_not_said_to_fit(
    tmp_path: Path, code: str, said: str
) -> None:
    exit_code, lines = check(tmp_path, code)
    assert (exit_code, lines[0].startswith(said)) == (1, True)


def test_a_file_of_another_purpose_that_is_no_python_does_not_end_the_reading(
    tmp_path: Path,
) -> None:
    exit_code, lines = check(tmp_path, PLAIN + QUIET, another_py="{{ cookiecutter.x }}=\n")
    assert lines[0].startswith("another.py:1: differs: Cannot parse this file as Python: ")
    assert (exit_code, lines[-2:]) == (0, ["Nothing must change.", LAST])


def test_environments_and_hidden_folders_are_not_read(tmp_path: Path) -> None:
    for folder in ("env", ".git", "node_modules"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.py").write_text("from kopf._cogs import x\n")
    (tmp_path / "env" / "pyvenv.cfg").touch()
    exit_code, _ = check(tmp_path)
    assert exit_code == 0
