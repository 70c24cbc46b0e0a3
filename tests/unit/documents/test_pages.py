# SPDX-License-Identifier: Apache-2.0
"""Every page with generated parts is committed as `make docs` writes it."""

from pathlib import Path

import pytest

from documents.__main__ import PAGES
from documents.serving_pages.gate_page import page as gate_page


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_committed_page_is_what_make_docs_writes(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text == PAGES[path](text), "run `make docs` and commit the result"


def test_a_page_without_the_place_of_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has no place for metrics: it takes the lines"):
        gate_page("# Empty\n")
