"""Asks the search of the built site the questions of users: ``python -m tools.site.searching``.

``questions.tsv`` has one question a line, as people type it, and the pages that answer it. The
search is that of the site: its index, its worker, and ``docs/search.js``, all run by node (that of
the machine, or of playwright). A question is answered if one of its pages is among the first three
results. The exit code is 1 if too few are. ``make docs`` runs this after the build.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from tests.kit.pages import ROOT

QUESTIONS = Path(__file__).with_name("questions.tsv")
SITE = ROOT / "site"
FIRST = 3  # results that a user looks at
WANTED = 0.96  # of the questions

# The worker gets messages of the page: 0 is the index, 2 a query. Its answers are 1 and 3.
_HARNESS = """
const fs = require("fs");
const files = process.argv.slice(2).map(file => fs.readFileSync(file, "utf8"));
const [worker, rewriting, index, questions] = files;
let receive;
globalThis.self = globalThis;
globalThis.addEventListener = (_, listener) => { receive = listener; };
let answer;
globalThis.postMessage = message => { answer(message); };
class Worker { postMessage(message) { receive({ data: message }); } }
globalThis.Worker = Worker;
eval(worker);
eval(rewriting);
const page = new Worker();
const ask = message => new Promise(resolve => { answer = resolve; page.postMessage(message); });
(async () => {
  const { config, docs } = JSON.parse(index);
  await ask({ type: 0, data: { config, docs, options: { suggest: true } } });
  const found = [];
  for (const question of JSON.parse(questions)) {
    const { data } = await ask({ type: 2, data: question });
    found.push(data.items.map(sections => sections[0].location.split("#")[0]));
  }
  console.log(JSON.stringify(found));
})();
"""


def read_questions() -> dict[str, list[str]]:
    """Return the pages that answer each question, as paths without ``.md``."""
    lines = QUESTIONS.read_text(encoding="utf-8").splitlines()
    pairs = (line.split("\t") for line in lines)
    return {question: pages.split() for question, pages in pairs}


def find_node() -> str:
    """Return the path of node."""
    found = shutil.which("node")
    if found is None:
        from playwright._impl._driver import compute_driver_executable  # noqa: PLC0415

        found, _ = compute_driver_executable()
    return found


def search(questions: list[str]) -> list[list[str]]:
    """Return the pages that the site finds for each question, the best first."""
    (worker,) = (SITE / "assets" / "javascripts" / "workers").glob("search.*.js")
    asked = SITE / "search" / "questions.json"
    asked.write_text(json.dumps(questions), encoding="utf-8")
    files = [worker, ROOT / "docs" / "search.js", SITE / "search" / "search_index.json", asked]
    try:
        done = subprocess.run(
            [find_node(), "-", *map(str, files)],
            input=_HARNESS,
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        asked.unlink()
    found: list[list[str]] = json.loads(done.stdout)
    return [[page.strip("/") or "index" for page in pages] for pages in found]


def main(questions: list[str]) -> int:
    """Print what is found, for the given questions or for those of the file."""
    if questions:
        for question, pages in zip(questions, search(questions), strict=True):
            print(f"{question}: {', '.join(pages[:8])}")
        return 0
    known = read_questions()
    answered = 0
    for (question, wanted), pages in zip(known.items(), search([*known]), strict=True):
        if set(pages[:FIRST]) & set(wanted):
            answered += 1
        else:
            print(f"{question}: {', '.join(pages[:FIRST])}; wanted {' or '.join(wanted)}")
    print(f"{answered} of {len(known)} questions have a right page in the first {FIRST} results.")
    return 0 if answered >= WANTED * len(known) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
