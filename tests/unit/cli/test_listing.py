"""``webop handlers``: what files register, as a table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.kit.cli_runner import invoke
from webop.cli.tables import build_table

CODE = """
import functools
import webop

print('imported')

def is_big(**_): ...

@webop.on.startup()
def configure(**_): ...

@webop.on.create('crontabs.v1.example.com', labels={'app': 'web', 'tier': webop.PRESENT}, retries=5)
@webop.on.update('crontabs', field='spec.size', old=1, new=webop.ABSENT, when=is_big)
def change(**_): ...

webop.on.resume(kind='Pod', deleted=True)(functools.partial(change, how='so'))

@webop.on.delete(webop.EVERYTHING, optional=True)
def remove(**_): ...

@webop.on.field('pods', field='metadata.labels', annotations={'a/b': is_big}, value='x y')
async def follow(**_): ...

@webop.on.event(group='example.com', category='all', param={'a': [1, 2]})
def spy(**_): ...

@webop.timer('pods', interval=5, sharp=True, initial_delay=is_big)
def tick(**_): ...

@webop.on.validate('pods', operations=['UPDATE', 'CREATE'], persistent=True, subresource='*',
                   match_conditions={'not-one': 'object.x!=1'})
def check(**_): ...

@webop.reconcile('crontabs', owns=['configmaps'], backoff=[1, 5])
def keep(**_): ...

webop.rule('crontabs.example.com', id='small', cel='object.spec.size < 9', message='Too large.')
"""
# kind, resource, id, filters and options
LISTED = [
    ("startup", "-", "configure", ""),
    (
        *("validate", "pods", "check"),
        (
            "operations=CREATE|UPDATE, subresource=*, persistent=True, match_conditions="
            "MatchCondition(name='not-one', expression='object.x!=1')"
        ),
    ),
    (
        *("update", "crontabs", "change/spec.size"),
        "field=spec.size, old=1, new=ABSENT, when=is_big()",
    ),
    (
        *("create", "crontabs.v1.example.com", "change"),
        "labels[app]=web, labels[tier]=PRESENT, retries=5",
    ),
    ("resume", "Pod", "change", "deleted=True"),
    ("delete", "EVERYTHING", "remove", "optional=True"),
    (
        *("field", "pods", "follow/metadata.labels"),
        "annotations[a/b]=is_big(), field=metadata.labels, value='x y'",
    ),
    ("event", "category=all, group=example.com", "spy", "param={'a': [1, 2]}"),
    ("timer", "pods", "tick", "initial_delay=is_big(), interval=5, sharp=True"),
    ("reconcile", "crontabs", "keep", "backoff=1|5, owns=configmaps"),
    (*("reconcile, owns", "configmaps", "keep/configmaps"), "metadata_only=True, parent=keep"),
    (
        *("webop.rule", "crontabs.example.com", "small"),
        "cel='object.spec.size < 9', message='Too large.', operations=CREATE|UPDATE",
    ),
]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / f"{tmp_path.name}.py"  # a module is imported once in a process
    path.write_text(CODE)
    return path


def test_the_table_has_a_line_for_each_handler(path: Path) -> None:
    lines = invoke("handlers", path.name).stdout.splitlines()
    columns = [lines[0].index(name) + 1 for name in (" RESOURCE", " ID", " SOURCE", " FILTERS AND")]
    cells = [
        [
            line[begin:end].strip()
            for begin, end in zip([0, *columns], [*columns, None], strict=True)
        ]
        for line in lines[1:]
    ]
    assert [(kind, resource, id, rest) for kind, resource, id, _, rest in cells] == LISTED
    *handlers, (*_, no_source, _) = cells
    assert no_source == "-"
    for cell in handlers:
        source, _, number = cell[3].partition(":")
        assert source == path.name
        assert CODE.splitlines()[int(number) - 1].startswith(("@", "webop.on.resume"))


def test_what_cannot_be_listed_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "kopf", raising=False)  # other tests import it
    assert invoke("handlers").exit_code == 2
    result = invoke("handlers", "nowhere.py")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nowhere.py" in result.stderr
    path.write_text("import nonexistent_module")
    assert "nonexistent_module" in invoke("handlers", path.name).stderr
    path.write_text("")
    assert invoke("handlers", path.name).stdout == "There are no handlers.\n"


def test_a_table_for_a_terminal_is_as_wide_as_that() -> None:
    rows = [("ID", "DETAILS"), ("a-long-name-of-something", "one two three four"), ("b", "")]
    assert build_table(rows, 24).splitlines() == [
        "ID           DETAILS",
        "a-long-      one two",
        "name-of-     three four",
        "something",
        "b",
    ]
