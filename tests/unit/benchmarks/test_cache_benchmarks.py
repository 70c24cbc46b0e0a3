# SPDX-License-Identifier: Apache-2.0
"""Requests and counts of the benchmarks of the KV cache, counted by hand."""

import pytest

from benchmarks.paged_memory import Load, Moment, _run, _wasted_in_blocks, _wasted_in_reserve
from benchmarks.prefix_cache import PairMaker, _counted, _Counts
from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from ensemble_configs.spec.release_spec import TokenizerSpec
from serving.engines.providers import create_engine
from serving.text.tokenization import PromptTokenizer
from trireme.base.project_files import CODE_ROOT

DEMO = CODE_ROOT / "examples/demo_model"
TARGET = DEMO / "openvino/target"


def test_a_pair_shares_what_it_says_and_the_cold_prompt_shares_nothing() -> None:
    tokenizer = PromptTokenizer.from_spec(TokenizerSpec(dir=DEMO / "target"))
    makers = [PairMaker(tokenizer, shared_tokens=length, seed=1) for length in (64, 96)]
    asked: list[list[int]] = []
    for pair in [maker.pair() for maker in makers for _ in range(2)]:
        earlier, warm, cold = (tokenizer.encode(text).tolist() for text in (pair.earlier, pair.warm, pair.cold))
        assert len(earlier) == len(warm) == len(cold)
        assert pair.num_shared_tokens >= len(warm) - 40
        shared = pair.num_shared_tokens
        assert earlier[:shared] == warm[:shared]
        assert earlier[shared] != warm[shared]
        assert all(cold[:32] != other[:32] and earlier[:32] != other[:32] for other in asked), "no block of another"
        asked += [earlier, cold]


def test_hits_are_read_when_all_of_them_have_been_told() -> None:
    # A page that is a moment late: first the requests, then the engine's steps.
    pages = ((10, 4, 6), (90, 20, 6), (110, 36, 70), (110, 36, 74))
    counted = _counted(map(_Counts._make, pages).__next__, _Counts(10, 4, 6), _Counts(100, 32, 68))
    assert counted == _Counts(100, 32, 68)


def test_the_memory_that_holds_no_token_is_that_of_each_step() -> None:
    spec = OpenVinoEngineSpec.model_validate(
        {"provider": "openvino", "dir": TARGET, "max_seq_len": 512, "num_kv_blocks": 64}
    )
    engine = create_engine(spec)
    ran = _run(engine, Load([(31, 3), (70, 4)], seed=1))
    assert ran.most_running == 2
    # Prompts of 31 and 70 tokens in blocks of 32; the step after has one token more of each, and so on. The first ends
    # in the third step, which still has its blocks; in the last the engine has nothing to tell any more.
    assert ran.moments == [Moment(2, 1 + 3, 31 + 70), Moment(2, 1 + 3, 32 + 71), Moment(2, 2 + 3, 33 + 72)]
    held = 101 + 103 + 105
    assert _wasted_in_blocks(ran, engine) == pytest.approx(1 - held / (32 * 13))
    assert _wasted_in_reserve(ran, 512) == pytest.approx(1 - held / (512 * 6))
