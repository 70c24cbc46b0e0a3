# SPDX-License-Identifier: Apache-2.0
"""Stop strings end a generation in the step that completes one, whatever the engine behind them does."""

import msgspec
import pytest
from simulated_release import TOKENIZER

from ensemble_configs.spec.release_spec import TokenizerSpec
from serving.engine_process.stopping_engine import StoppingEngine
from serving.engines.seam.base import (
    Engine,
    EngineInfo,
    EngineStats,
    FinishReason,
    GenerationRequest,
    PerfMetrics,
    SamplingParams,
    TokenChunk,
)
from serving.text.detokenization import TextDecoder
from serving.text.tokenization import PromptTokenizer
from trireme.base.errors import RequestError

SPEC = TokenizerSpec(dir=TOKENIZER, add_special_tokens=False)
DECODER = TextDecoder.from_spec(SPEC)
PROMPTS = PromptTokenizer.from_spec(SPEC)
STATS = EngineStats(num_running=1, num_waiting=2, num_used_kv_blocks=3, num_kv_blocks=4, num_steps=5)
INFO = EngineInfo(
    provider="scripted", vocab_size=4096, max_seq_len=64, end_ids=(), kv_block_tokens=16, num_kv_blocks=4,
    max_num_seqs=2, max_num_batched_tokens=64, supported=frozenset(),
)  # fmt: skip


class ScriptedEngine(Engine):
    """An engine that generates a script, and notes its calls."""

    info = INFO

    def __init__(self, *steps: list[TokenChunk]) -> None:
        self.steps = list(steps)
        self.calls: list[object] = []

    def add(self, request: GenerationRequest) -> None:
        if not request.input_ids:
            raise RequestError("input_ids is empty")
        self.calls.append(("add", request.key))

    def cancel(self, key: int) -> None:
        self.calls.append(("cancel", key))

    def perf_of(self, key: int) -> PerfMetrics:
        return PerfMetrics(key, 2, 3, 4)

    def step(self) -> list[TokenChunk]:
        return self.steps.pop(0)

    @property
    def has_work(self) -> bool:
        return bool(self.steps)

    def stats(self) -> EngineStats:
        return STATS

    def close(self) -> None:
        self.calls.append("close")


def request(key: int, *stop_strings: str, input_ids: tuple[int, ...] = (20,)) -> GenerationRequest:
    return GenerationRequest(
        key=key, input_ids=list(input_ids), sampling=SamplingParams(max_tokens=50), stop_strings=stop_strings
    )


def tokens(text: str) -> list[int]:
    return list(map(int, PROMPTS.encode(text)))


def test_a_request_that_goes_on_ends_at_a_string_that_began_before_it_was_stopped() -> None:
    begun, rest = tokens("the sto"), tokens("p sign")
    engine = StoppingEngine(ScriptedEngine([TokenChunk(1, rest)]), DECODER)
    resumed = request(1, "stop sign", input_ids=(20, *begun))
    engine.add(msgspec.structs.replace(resumed, num_output_ids=len(begun)))
    [[chunk]] = run(engine, 1)
    assert (chunk.token_ids, chunk.finish_reason) == (rest, FinishReason.STOP_STRING)


def run(engine: Engine, num_steps: int) -> list[list[TokenChunk]]:
    return [engine.step() for _ in range(num_steps)]


def test_requests_without_stop_strings_pass_untouched() -> None:
    chunks = [TokenChunk(1, [5]), TokenChunk(2, [], error="[INTERNAL] no")]
    inner = ScriptedEngine(chunks)
    engine = StoppingEngine(inner, DECODER)
    engine.add(request(1))
    assert engine.step() is chunks
    assert inner.calls == [("add", 1)]


def test_a_request_without_stop_strings_passes_beside_one_that_has_some() -> None:
    chunks = [TokenChunk(1, tokens("two")), TokenChunk(2, tokens("one"))]
    engine = StoppingEngine(ScriptedEngine(chunks), DECODER)
    engine.add(request(1))
    engine.add(request(2, "two"))
    assert engine.step() == chunks


def test_everything_else_is_the_engines_own() -> None:
    inner = ScriptedEngine([])
    engine = StoppingEngine(inner, DECODER)
    assert engine.info is INFO
    assert engine.has_work
    assert engine.stats() is STATS
    engine.cancel(3)
    engine.close()
    assert inner.calls == [("cancel", 3), "close"]


def test_the_token_that_completes_a_stop_string_is_the_last_and_the_engine_is_told() -> None:
    ids = tokens("one two three four")
    inner = ScriptedEngine(*([TokenChunk(1, [token_id])] for token_id in ids))
    engine = StoppingEngine(inner, DECODER)
    engine.add(request(1, "two th"))
    made: list[int] = []
    while True:
        [chunk] = engine.step()
        made += chunk.token_ids
        if chunk.finish_reason is not None:
            break
    assert chunk.finish_reason is FinishReason.STOP_STRING
    assert "two th" in DECODER.decode(made)
    assert "two th" not in DECODER.decode(made[:-1])
    assert inner.calls == [("add", 1), ("cancel", 1)]


def test_what_comes_behind_the_match_in_the_same_chunk_is_dropped() -> None:
    ids = tokens("one two three four")
    inner = ScriptedEngine([TokenChunk(1, ids)])
    engine = StoppingEngine(inner, DECODER)
    engine.add(request(1, "two"))
    [[chunk]] = run(engine, 1)
    assert chunk.finish_reason is FinishReason.STOP_STRING
    assert len(chunk.token_ids) < len(ids)
    assert DECODER.decode(chunk.token_ids).startswith("one two")


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.STOP])
def test_a_match_in_the_last_chunk_is_the_reason_and_nobody_is_cancelled(reason: FinishReason) -> None:
    inner = ScriptedEngine([TokenChunk(1, tokens("one two"), reason)])
    engine = StoppingEngine(inner, DECODER)
    engine.add(request(1, "two"))
    [[chunk]] = run(engine, 1)
    assert chunk.finish_reason is FinishReason.STOP_STRING
    assert inner.calls == [("add", 1)], "it has ended by itself"


def test_a_last_chunk_without_a_match_keeps_its_reason() -> None:
    last = TokenChunk(1, tokens("one tw"), FinishReason.LENGTH)
    engine = StoppingEngine(ScriptedEngine([last], [TokenChunk(1, tokens("o"))]), DECODER)
    engine.add(request(1, "two"))
    assert engine.step() == [last]
    assert engine.step() == [TokenChunk(1, tokens("o"))], "another request of the same key is not watched"


def test_the_text_is_followed_over_chunks_and_each_request_has_its_own() -> None:
    engine = StoppingEngine(
        ScriptedEngine(
            [TokenChunk(1, tokens("ab")), TokenChunk(2, tokens("x"))],
            [TokenChunk(1, tokens("x")), TokenChunk(2, tokens("c"))],
            [TokenChunk(1, tokens("c")), TokenChunk(2, tokens("d"))],
        ),
        DECODER,
    )
    engine.add(request(1, "abxc"))
    engine.add(request(2, "abxc"))
    steps = run(engine, 3)
    assert [chunk.finish_reason for chunk in steps[2]] == [FinishReason.STOP_STRING, None]


def test_a_chunk_with_an_error_passes_and_ends_the_watch() -> None:
    failed = TokenChunk(1, [], error="[UNAVAILABLE] no")
    engine = StoppingEngine(ScriptedEngine([failed], [TokenChunk(1, tokens("two"))]), DECODER)
    engine.add(request(1, "two"))
    assert engine.step() == [failed]
    assert engine.step() == [TokenChunk(1, tokens("two"))]


def test_a_cancelled_request_is_watched_no_more() -> None:
    engine = StoppingEngine(ScriptedEngine([TokenChunk(1, tokens("two"))]), DECODER)
    engine.add(request(1, "two"))
    engine.cancel(1)
    assert engine.step() == [TokenChunk(1, tokens("two"))]


def test_a_refused_request_is_not_watched() -> None:
    engine = StoppingEngine(ScriptedEngine([TokenChunk(1, tokens("two"))]), DECODER)
    with pytest.raises(RequestError):
        engine.add(request(1, "two", input_ids=()))
    assert engine.step() == [TokenChunk(1, tokens("two"))]


def test_what_is_told_of_the_tokens_ends_with_the_last_of_them() -> None:
    ids = PROMPTS.encode("one two three").tolist()
    log_probs = [-float(i) for i in range(len(ids))]
    engine = StoppingEngine(ScriptedEngine([TokenChunk(7, ids, log_probs=log_probs)]), DECODER)
    sampling = SamplingParams(max_tokens=50)
    engine.add(GenerationRequest(key=7, input_ids=[1], sampling=sampling, stop_strings=("two",)))
    [chunk] = engine.step()
    assert 0 < len(chunk.token_ids) < len(ids)
    assert chunk.log_probs == log_probs[: len(chunk.token_ids)]
    assert chunk.perf == PerfMetrics(7, 2, 3, 4)


def test_the_engines_own_word_of_its_performance_counts_where_it_ended_itself() -> None:
    ids = PROMPTS.encode("one two three").tolist()
    own = PerfMetrics(1, 1, 1, 1)
    engine = StoppingEngine(ScriptedEngine([TokenChunk(7, ids, FinishReason.LENGTH, perf=own)]), DECODER)
    sampling = SamplingParams(max_tokens=50)
    engine.add(GenerationRequest(key=7, input_ids=[1], sampling=sampling, stop_strings=("two",)))
    [chunk] = engine.step()
    assert (chunk.finish_reason, chunk.perf) == (FinishReason.STOP_STRING, own)
