"""What hatch adds to the metadata of the package: its URLs, and a README for package indexes.

The address of the repository comes from ``WEBOP_REPO_URL``, as for ``make docs``; the workflows set
it. In a package index, only absolute links work.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

VARIABLE = "WEBOP_REPO_URL"
_NOT_SET = (
    f"{VARIABLE} is not set: the package gets no URLs, and the links of its README stay relative, "
    f"which do not work in a package index. Set it, for example: {VARIABLE}=https://github.com/me/webop"
)
_PAGES = {
    "Homepage": "",
    "Source": "",
    "Documentation": "/blob/v{version}/docs/index.md",
    "Changelog": "/blob/v{version}/CHANGELOG.md",
    "Issues": "/issues",
}
_IMAGE = re.compile(r"""(!\[[^\]]*\]\(|<img src=")(?!https?:|#)""")
_LINK = re.compile(r"((?<!!)\[[^\]]*\]\()(?!https?:|#)")
_ALERT = re.compile(r"^> \[!(\w)(\w+)\]$", re.MULTILINE)  # only GitHub shows these as boxes


class PackageMetadata(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        url = os.environ.get(VARIABLE, "").rstrip("/")
        version = metadata["version"]
        if not url:
            sys.stderr.write(f"Warning: {_NOT_SET}\n")
        metadata["urls"] = {
            name: url + page.format(version=version) for name, page in _PAGES.items() if url
        }
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": resolve_links(text, url, f"v{version}") if url else text,
        }


def resolve_links(text: str, url: str, tag: str) -> str:
    """Make links and images of a page absolute, to a tag of a repository on GitHub or GitLab."""
    text = _IMAGE.sub(rf"\g<1>{url}/raw/{tag}/", text)
    text = _LINK.sub(rf"\g<1>{url}/blob/{tag}/", text)
    return _ALERT.sub(lambda found: f"> **{found[1]}{found[2].lower()}:**", text)
