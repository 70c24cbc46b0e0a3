# SPDX-License-Identifier: Apache-2.0
"""The check that every link between the Markdown documents leads somewhere; links to the web are left alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
CODE_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def anchors(document: str) -> set[str]:
    """Return the anchors of a document's headings, as GitHub writes them."""
    headings = HEADING.findall(CODE_BLOCK.sub("", document))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(document: Path) -> list[str]:
    """Return a line for each link of a document that leads nowhere."""
    text = document.read_text(encoding="utf-8")
    broken = []
    for link in LINK.findall(CODE_BLOCK.sub("", text)):
        path, _, anchor = link.partition("#")
        if ":" in path:  # https:, mailto:
            continue
        target = document.parent / path if path else document
        if not target.exists():
            broken.append(f"{document}: {link}: no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8")):
            broken.append(f"{document}: {link}: no such heading")
    return broken


def main() -> int:
    """Check the documents that git knows or would add, and return the exit code."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    broken = [line for name in names if (ROOT / name).exists() for line in broken_links(ROOT / name)]
    print("\n".join([*broken, f"{len(names)} documents, {len(broken)} broken links"]))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
