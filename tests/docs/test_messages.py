"""The page of messages has all that the code says, in the words of a log."""

from __future__ import annotations

import textwrap

import pytest

from tests.docs.messages import PAGE, build_page, collect


def test_the_page_of_messages_is_as_the_code_has_it() -> None:
    assert PAGE.read_text(encoding="utf-8") == build_page(), "Write it again: make reference"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('logger.info("Stopping (%s).", name)', "INFO: Stopping (<name>)."),
        (
            'logger.log(logging.DEBUG, "%.1f s of %d %%", self.delay, n)',
            "DEBUG: <delay> s of <n> %",
        ),
        ('logger.log(once.choose_level("x"), "Again.")', "WARNING: Again."),
        ('raise LoginError(f"There is no {kind!r}.")', "Exceptions: There is no <kind>."),
        ('return ValueError("is not " + repr(name))', "Exceptions: is not <name>"),
        ('click.echo(f"Found {len(found)} objects.")', "Command line: Found <found> objects."),
        ('logger.error("One." if x else "Two.")', "ERROR: One. ERROR: Two."),
        ('text = f"Lost: {why}"\nlogger.error(text)', "ERROR: Lost: <why>"),
        ('raise KeyError(f"{key}")', ""),
    ],
)
def test_texts_are_found(source: str, expected: str) -> None:
    body = textwrap.indent(source, "    ")
    found = sorted(collect("webop.example", f"def do():\n{body}\n"))
    assert " ".join(f"{entry.group}: {entry.text}" for entry in found) == expected


def test_texts_that_a_function_is_called_with_are_found() -> None:
    source = """
    def refuse(message, kind=""):
        raise ConfigurationError(f"{message} See the page.")

    class Reader:
        def read(self):
            refuse("The file is empty.")

        def close(self):
            refuse(message=f"The file {self.path} is open.")
    """
    found = {entry.text for entry in collect("webop.example", textwrap.dedent(source))}
    assert found == {
        "The file is empty. See the page.",
        "The file <path> is open. See the page.",
    }
