# SPDX-License-Identifier: Apache-2.0
"""Tests of the cancels and texts in the study of vLLM's engine, and of their rows on the page of figures."""

import re
import time

import pytest

from benchmarks.peers import vllm_beside
from benchmarks.peers.vllm_beside import SCRIPTS, _cancels, _compared, _prompts, _stop_in
from documents import performance_page
from trireme.base.errors import ServerError


class FakeSide:
    """A server whose blocks are free some looks after a client has left."""

    name = "fake"

    def __init__(self, num_looks: int) -> None:
        self._num_looks = num_looks
        self._left = 0
        self.prompts: list[str] = []

    def text(self, prompt: str, script: str, stop: str | None) -> str:
        return f"{prompt}{script}{stop}"

    def leave(self, prompt: str, after_chunks: int) -> float:
        assert after_chunks > 0
        self.prompts.append(prompt)
        self._left = self._num_looks
        return time.monotonic()

    def used_blocks(self) -> float:
        self._left -= 1
        time.sleep(0.002)
        return max(0, self._left)


def test_a_cancel_counts_until_no_block_is_used_and_the_first_one_warms_up() -> None:
    side = FakeSide(num_looks=5)
    found = _cancels(side, 4, seed=1)
    assert (found.side, found.clients, len(set(side.prompts))) == ("fake", 4, 5)
    assert 10 <= found.kv_free_p50_ms <= found.kv_free_p99_ms <= found.kv_free_max_ms < 500


def test_blocks_that_never_come_free_end_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_beside, "_FREE_S", 0.05)
    with pytest.raises(ServerError, match=r"KV blocks were used 0\.05 s after a client had left"):
        _cancels(FakeSide(num_looks=10**6), 1, seed=1)


def test_texts_are_equal_differ_by_a_cut_character_or_differ() -> None:
    plain = [("one", "one"), ("two", "two\ufffd"), ("three", "thr")]
    found = _compared("Thai", plain, [("o", "o"), ("two", "two"), ("th", "three")])
    assert found == vllm_beside.Texts("Thai", texts=6, equal=3, equal_but_for_a_cut_character=4, stopped=2)


def test_a_guide_of_each_script_matches_its_characters_alone() -> None:
    for script, sample in {
        "Thai": "กา",
        "Arabic": "ما",
        "Korean": "프랑",
        "combining marks": "a\u0301",
        "code": "\tx",
    }.items():
        assert re.fullmatch(f"{SCRIPTS[script][1]}{{1,9}}", sample), script
        assert not re.fullmatch(f"{SCRIPTS[script][1]}{{1,9}}", "Ж"), script


def test_each_prompt_is_another_and_each_stop_string_is_of_its_text() -> None:
    prompts = _prompts(3, seed=5)
    assert len({prompt for _, prompt in prompts}) == 3 * len(SCRIPTS)
    assert prompts == _prompts(3, seed=5)
    for text in ("abcdefgh" * 4, "x", "क्या है"):
        assert _stop_in(text, 1) in text


def test_results_without_cancels_say_so_and_with_them_make_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"side": "side", "kv_free_p99_ms": "p99 ms"}
    monkeypatch.setattr(performance_page, "source", lambda _: "a file")
    monkeypatch.setattr(performance_page, "latest", lambda _: {"rows": []})
    assert performance_page._vllm_rows("cancels", columns) == "No result is kept yet."
    kept = {"cancels": [{"side": "ours", "clients": 2, "kv_free_p99_ms": 12.34}]}
    monkeypatch.setattr(performance_page, "latest", lambda _: kept)
    assert "| ours | 12 |" in performance_page._vllm_rows("cancels", columns)
