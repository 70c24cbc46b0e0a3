# SPDX-License-Identifier: Apache-2.0
"""Texts of the code as cells of the tables in `docs/reference`."""

import re

_PAGE = re.compile(r"\bdocs/(?P<path>[\w/]+\.md)(?P<anchor>#[\w-]+)?")


def cell(text: str) -> str:
    """Return a text as one line of Markdown, its `|` escaped, and pages of `docs/` linked."""
    line = " ".join(text.split()).replace("|", r"\|")
    return _PAGE.sub(lambda page: f"[{page['path']}](../{page['path']}{page['anchor'] or ''})", line)
