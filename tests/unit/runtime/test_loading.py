"""Files and modules of users: how they are imported, and what is said if they cannot be."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import webop
from tests.kit.rows import rows
from webop.errors import ConfigurationError
from webop.runtime.loading import guess_name, load_file, load_module, load_sources

HANDLER = """
import webop
@webop.on.create('kopfexamples')
def fn(**_):
    pass
"""


@pytest.fixture(autouse=True)
def registry(
    monkeypatch: pytest.MonkeyPatch, default_registry: webop.OperatorRegistry
) -> Iterator[webop.OperatorRegistry]:
    """Where loaded handlers go; the modules that the test imports are forgotten afterwards."""
    modules = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield default_registry
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("sources", "name"),
    [
        (["My_Tenants.v2.py"], "my-tenants-v2"),
        (["handlers.py"], "shop"),
        (["one.py", "two.py"], "one"),  # a second file does not rename the operator
        (["/app/handlers.py"], "webop"),  # all images can have it
        (["/srv/shop/src/app/main.py"], "shop"),
        (["stock.handlers", "stock/webhooks.py"], "stock"),
        ([], "webop"),
    ],
)
def test_an_operator_is_named_after_its_package_its_file_or_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: list[str], name: str
) -> None:
    folder = tmp_path / "clone" / "shop"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    assert guess_name(sources) == name


@pytest.mark.feature("LOD-01", "TRB-03")
@pytest.mark.parametrize("name", ["json.py", "operator.py", "webop.py", "with-dash.py"])
def test_a_file_can_have_any_name(
    registry: webop.OperatorRegistry, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text(HANDLER)
    load_file(tmp_path / name)
    assert len(registry) == 1
    assert sys.modules["webop"] is webop


@pytest.mark.feature("LOD-01", "LOD-03", "HND-13")
def test_files_of_one_name_in_two_folders_are_two_modules(
    registry: webop.OperatorRegistry, tmp_path: Path
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "handlers.py").write_text(HANDLER)
        load_file(tmp_path / folder / "handlers.py")
    assert len(registry) == 2


def fail(tmp_path: Path, code: str) -> str:
    path = tmp_path / "broken_file.py"
    path.write_text(code)
    with pytest.raises(ConfigurationError) as caught:
        load_file(path)
    assert "broken_file" not in sys.modules
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.feature("LOD-01")
def test_a_missing_file_is_told_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no file '.*nowhere\.py'"):
        load_file(tmp_path / "nowhere.py")
    (tmp_path / "handlers.py").touch()
    with pytest.raises(ConfigurationError, match=r"Did you mean '.*handlers\.py'\?"):
        load_file(tmp_path / "handlers")
    with pytest.raises(ConfigurationError, match=r"Did you mean '.*handlers\.py'\?$"):
        load_file(tmp_path / "handlers.pyy")  # it is no module
    with pytest.raises(ConfigurationError, match=r"For a module: -m webop\.handlers"):
        load_file(Path("webop.handlers"))
    with pytest.raises(ConfigurationError, match=r"is a folder\. Name the files in it"):
        load_file(tmp_path)
    with pytest.raises(ConfigurationError, match="a file, not a module: name it without -m"):
        load_module("handlers.py")


@pytest.mark.feature("LOD-01")
@rows(
    ("code", "expected"),
    [
        ("if True:\nx = 1", ["IndentationError", "line 2"]),
        ("x = 1\n1/0", ["ZeroDivisionError", "line 2", "1/0"]),
        ("import webop\n@webop.on.field('x')\ndef fn(**_): ...", ["TypeError", "field=", "line 2"]),
        ("import webop\nwebop.on.created", ["AttributeError", "mean 'create", "line 2"]),
        ("from . import others", ["relative import", "-m package.module"]),
    ],
)
def test_a_file_that_fails_is_told_with_the_line(
    tmp_path: Path, code: str, expected: list[str]
) -> None:
    message = fail(tmp_path, code)
    for part in expected:
        assert part in message
    assert "\n" not in message
    assert "Traceback" not in message


@pytest.mark.feature("LOD-02")
@rows("name", ["nonexistent_module", "nonexistent_package.handlers", "json.no"])
def test_a_missing_module_is_told_by_its_name(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{name}' cannot be imported") as e:
        load_module(name)
    assert "importlib" not in str(e.value)  # there is no line of the user's to name


@pytest.mark.feature("LOD-01", "LOD-02", "LOD-04")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("handlers", "handlers.py"),
        ("package/within.py", "package.within"),
    ],
)
def test_a_file_that_is_named_in_two_ways_registers_its_handlers_once(
    registry: webop.OperatorRegistry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: str,
    second: str,
) -> None:
    (tmp_path / "handlers.py").write_text(HANDLER)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "within.py").write_text(HANDLER)
    monkeypatch.chdir(tmp_path)
    load_sources([first, second])
    assert len(registry) == 1


@pytest.mark.feature("LOD-01", "ADM-13")
def test_a_script_that_serves_its_own_file_has_each_webhook_once(tmp_path: Path) -> None:
    (tmp_path / "handlers.py").write_text(
        """
import asyncio, webop
@webop.on.validate('widgets')
def check(**_): ...
async def main():
    async with webop.create_app(modules=["handlers.py"]).lifespan():
        print(webop.get_default_registry().select_webhooks())
if __name__ == "__main__":
    asyncio.run(main())
"""
    )
    done = subprocess.run(
        [sys.executable, "handlers.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.count("id='check'") == 1


PACKAGE = {
    "pkg/__init__.py": HANDLER.replace("fn", "of_package"),
    "pkg/handlers.py": HANDLER.replace("fn", "of_handlers"),
    "pkg/other.py": "import pkg.handlers\npkg.handlers.of_handlers\n"
    "from . import handlers as again\nassert again is pkg.handlers\n",
}


@pytest.mark.feature("LOD-01", "LOD-02", "LOD-04")
@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ("pkg/handlers.py pkg/other.py", ["of_package", "of_handlers"]),
        ("pkg/__init__.py pkg/handlers.py -m pkg.other", ["of_package", "of_handlers"]),
    ],
)
def test_files_of_a_package_are_its_modules_and_register_their_handlers_once(
    tmp_path: Path, sources: str, expected: list[str]
) -> None:
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "webop", "handlers", *sources.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()[1:]
    assert [line.split()[2] for line in lines] == expected, done.stderr
