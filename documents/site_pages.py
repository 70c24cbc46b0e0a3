# SPDX-License-Identifier: Apache-2.0
"""The hooks of `mkdocs.yml`: pages of the site outside `docs/`, and links between all of them.

README.md is the site's first page. A file outside `docs/` that a page links to is part of the site at its own path,
unless it is code.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
_START = "README.md"
_ROOT_PAGES = (_START, "SECURITY.md")
_LINK = re.compile(r"(?P<before>!?\[[^\]]*\])\((?P<path>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)")
_FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the first page, and every file outside `docs/` that a page links to, directly or by way of another."""
    left = [*_ROOT_PAGES, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    known = set(left)
    for path in _ROOT_PAGES:
        files.append(_outside(config, path))
    while left:
        source = left.pop()
        for target in _targets(source):
            is_shown = (ROOT / target).is_file() and not target.endswith(".py")
            if target in known or target.startswith("docs/") or not is_shown:
                continue
            known.add(target)
            files.append(_outside(config, target))
            if target.endswith(".md"):
                left.append(target)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links of a page to where the files lie in the site; a link to a folder or to code becomes text."""
    del config
    source = _in_checkout(page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        target = _target(source, link["path"])
        uri = _in_site(target)
        if files.get_file_from_path(uri) is None and not target.startswith("docs/"):
            return _as_text(link["before"].strip("[]"), target) if (ROOT / target).exists() else link[0]
        path = posixpath.relpath(uri, posixpath.dirname(page.file.src_uri))
        return f"{link['before']}({path}{link['anchor'] or ''})"

    parts = _FENCE.split(markdown)
    return "".join(part if part.startswith("```") else _LINK.sub(moved, part) for part in parts)


def _as_text(shown: str, path: str) -> str:
    return f"`{path}`" if shown.strip("`") == path else f"{shown} (`{path}`)"


def _outside(config: MkDocsConfig, path: str) -> File:
    return File.generated(config, _in_site(path), abs_src_path=str(ROOT / path))


def _targets(source: str) -> list[str]:
    text = _FENCE.sub("", (ROOT / source).read_text(encoding="utf-8"))
    return [_target(source, link["path"]) for link in _LINK.finditer(text)]


def _target(source: str, path: str) -> str:
    """Return the path of a link in the checkout."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), path))


def _in_site(path: str) -> str:
    return "index.md" if path == _START else path.removeprefix("docs/")


def _in_checkout(uri: str) -> str:
    if uri == "index.md":
        return _START
    return f"docs/{uri}" if (ROOT / "docs" / uri).exists() else uri
