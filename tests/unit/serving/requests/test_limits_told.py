# SPDX-License-Identifier: Apache-2.0
"""Each limit of a request stands in `docs/contract.md`."""

import pytest

from serving.engines.seam import scheduling
from serving.engines.seam.base import MAX_BEAM_WIDTH
from serving.requests import engine_request as requests
from serving.requests.guided_decoding import MAX_GUIDE_CHARS
from serving.requests.stream_state import KEYS_PER_REQUEST
from serving.requests.word_lists import MAX_BAD_WORDS
from serving.text.stop_strings import MAX_STOP_STRING_CHARS, MAX_STOP_STRINGS, MAX_STOP_STRINGS_CHARS
from trireme.base.project_files import CODE_ROOT

CONTRACT = CODE_ROOT / "docs" / "contract.md"


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("stop_words", f"{MAX_STOP_STRINGS} strings of {MAX_STOP_STRING_CHARS} characters each"),
        ("stop_words", f"{MAX_STOP_STRINGS_CHARS} characters together"),
        ("bad_words", f"{MAX_BAD_WORDS} words"),
        ("guided_decoding_guide", f"{MAX_GUIDE_CHARS} characters"),
        ("beam_width", f"{MAX_BEAM_WIDTH}"),
        ("num_return_sequences", f"{KEYS_PER_REQUEST}, and {KEYS_PER_REQUEST} sequences together"),
        ("return_generation_logits", f"{requests._MAX_LOGITS_BYTES >> 20} MiB"),
        ("tenant", f"{scheduling._MAX_TENANT_CHARS} characters"),
    ],
)
def test_the_contract_tells_each_limit_of_a_request(field: str, told: str) -> None:
    section = CONTRACT.read_text().partition("## Limits\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("|")]
    [limit] = [row[1] for row in rows if f"`{field}`" in row[0]]
    assert told in limit
