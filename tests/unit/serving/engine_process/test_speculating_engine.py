# SPDX-License-Identifier: Apache-2.0
"""Drafting with one engine and verifying with another: tokens and ends as without, in fewer steps."""

import itertools

import msgspec
import pytest
from simulated_release import TOKENIZER

from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from ensemble_configs.spec.release_spec import TokenizerSpec
from serving.engine_process.speculating_engine import SpeculatingEngine
from serving.engine_process.stopping_engine import StoppingEngine
from serving.engines.seam.base import (
    Engine,
    EngineStats,
    ExtraOutputs,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    TokenChunk,
)
from serving.engines.seam.clock import VirtualClock
from serving.engines.simulated.simulated_engine import SimulatedEngine
from serving.requests.extra_outputs import merged
from serving.text.detokenization import TextDecoder
from trireme.base.errors import RequestError, SpecError


def simulated(**spec: object) -> SimulatedEngine:
    return SimulatedEngine(SimulatedEngineSpec.model_validate({"provider": "simulated"} | spec), VirtualClock())


def pair(error_rate: float = 0.3, **target: object) -> SpeculatingEngine:
    return SpeculatingEngine(simulated(**target), simulated(error_rate=error_rate))


def request(key: int = 1, max_tokens: int = 40, *, num_draft_tokens: int = 4, **sampling: object) -> GenerationRequest:
    params = SamplingParams(max_tokens=max_tokens, num_draft_tokens=num_draft_tokens, **sampling)  # type: ignore[arg-type]
    return GenerationRequest(key=key, input_ids=[20, 21, 20 + key], sampling=params)


def run(engine: Engine, *requests: GenerationRequest) -> dict[int, list[TokenChunk]]:
    """The chunks of each request, by its key."""
    for one in requests:
        engine.add(one)
    chunks: dict[int, list[TokenChunk]] = {one.key: [] for one in requests}
    while engine.has_work:
        for chunk in engine.step():
            chunks[chunk.key].append(chunk)
    return chunks


def ids(chunks: list[TokenChunk]) -> list[int]:
    return [token_id for chunk in chunks for token_id in chunk.token_ids]


def without_drafts(one: GenerationRequest) -> GenerationRequest:
    return msgspec.structs.replace(one, sampling=msgspec.structs.replace(one.sampling, num_draft_tokens=0))


SAMPLING: dict[str, dict[str, object]] = {
    "greedy": {},
    "one draft at a time": {"num_draft_tokens": 1},
    "more drafts than tokens": {"num_draft_tokens": 100},
    "one token": {"max_tokens": 1},
    "two tokens": {"max_tokens": 2},
    "sampled": {"top_p": 0.9, "seed": 7},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.5},
    "bad words": {"bad_words": ((100, 101), (200,))},
    "bias": {"embedding_bias": {50: 7.0}},
    "log probabilities": {"return_log_probs": True},
}


@pytest.mark.parametrize("error_rate", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=SAMPLING)
def test_the_tokens_are_those_without_drafts(sampling: dict[str, object], error_rate: float) -> None:
    one = request(**sampling)  # type: ignore[arg-type]
    expected = run(simulated(), without_drafts(one))[1]
    chunks = run(pair(error_rate), one)[1]
    assert ids(chunks) == ids(expected)
    assert [c.log_probs for c in chunks if not c.log_probs] == [None] * len(chunks) or one.sampling.return_log_probs
    assert _log_probs(chunks) == _log_probs(expected)
    assert chunks[-1].finish_reason is expected[-1].finish_reason is FinishReason.LENGTH
    assert all(chunk.finish_reason is None for chunk in chunks[:-1])


def _log_probs(chunks: list[TokenChunk]) -> list[float]:
    return [log_prob for chunk in chunks for log_prob in chunk.log_probs or ()]


@pytest.mark.parametrize("mode", ["hash", "echo"])
def test_an_end_token_ends_it_wherever_it_is_in_a_round(mode: str) -> None:
    prompt = run(simulated(mode=mode), without_drafts(request()))[1]
    for index, end_id in enumerate(ids(prompt)[:12]):
        one = request(end_id=end_id, min_tokens=index)
        expected = run(simulated(mode=mode), without_drafts(one))[1]
        engine = SpeculatingEngine(simulated(mode=mode), simulated(mode=mode, error_rate=0.3))
        chunks = run(engine, one)[1]
        assert ids(chunks) == ids(expected)
        assert chunks[-1].finish_reason is FinishReason.STOP


def test_accepted_drafts_are_counted_and_save_steps_of_the_target() -> None:
    # 4 drafts and a token of its own: 40 tokens in 8 rounds, of which the last needs no more than what is missing.
    chunks = run(pair(0.0), request())[1]
    assert [len(chunk.token_ids) for chunk in chunks] == [5] * 8
    perf = chunks[-1].perf
    assert perf is not None
    assert (perf.total_accepted_draft_tokens, perf.total_draft_tokens) == (32, 32)
    never = run(pair(1.0), request())[1]
    assert [len(chunk.token_ids) for chunk in never] == [1] * 40
    perf = never[-1].perf
    assert perf is not None
    # The last 4 rounds have room for 3, 2, 1 and no drafts.
    assert (perf.total_accepted_draft_tokens, perf.total_draft_tokens) == (0, 36 * 4 + 3 + 2 + 1)


def test_requests_with_drafts_and_without_share_the_engine() -> None:
    requests = [request(key, num_draft_tokens=key % 3 * 2) for key in range(1, 13)]
    expected = {one.key: ids(run(simulated(), without_drafts(one))[one.key]) for one in requests}
    assert {key: ids(chunks) for key, chunks in run(pair(num_kv_blocks=12), *requests).items()} == expected


def test_a_stop_string_ends_it_at_the_same_token() -> None:
    decoder = TextDecoder.from_spec(TokenizerSpec(dir=TOKENIZER))
    whole = decoder.decode(ids(run(simulated(), without_drafts(request()))[1]))
    for start in range(10, 60, 7):
        one = msgspec.structs.replace(request(), stop_strings=(whole[start : start + 5],))
        expected = run(StoppingEngine(simulated(), decoder), without_drafts(one))[1]
        chunks = run(StoppingEngine(pair(), decoder), one)[1]
        assert ids(chunks) == ids(expected)
        assert chunks[-1].finish_reason is FinishReason.STOP_STRING
        assert chunks[-1].perf is not None


def test_a_request_can_be_cancelled_in_every_phase_and_leaves_nothing() -> None:
    for num_steps in range(12):
        engine = pair()
        engine.add(request())
        for _ in range(num_steps):
            engine.step()
        engine.cancel(1)
        assert not engine.has_work
        assert (engine.stats().num_running, engine.stats().num_used_kv_blocks) == (0, 0)
        assert _draft_stats(engine).num_used_kv_blocks == 0
        assert engine.perf_of(1) is None
        assert len(ids(run(engine, request())[1])) == 40, "the same key again"


def _draft_stats(engine: SpeculatingEngine) -> EngineStats:
    stats = engine.stats().draft
    assert stats is not None
    return stats


def test_the_draft_engines_kv_blocks_are_told_beside_the_targets() -> None:
    engine = SpeculatingEngine(simulated(num_kv_blocks=64), simulated(num_kv_blocks=24, kv_block_tokens=8))
    assert (engine.stats().num_kv_blocks, _draft_stats(engine).num_kv_blocks) == (64, 24)
    engine.add(request())
    used = set()
    while engine.has_work:
        engine.step()
        used.add((engine.stats().num_used_kv_blocks, _draft_stats(engine).num_used_kv_blocks))
    # Of up to 42 tokens that are fed back: in blocks of 16, and of 8.
    assert max(target for target, _ in used) == 3
    assert max(draft for _, draft in used) in (5, 6)
    assert engine.stats().num_used_kv_blocks == _draft_stats(engine).num_used_kv_blocks == 0


def test_no_engine_of_the_two_looks_idle_while_it_is_the_others_turn() -> None:
    engine = pair()
    engine.add(request())
    used = []
    while engine.has_work:
        engine.step()
        used.append((engine.stats().num_used_kv_blocks > 0, _draft_stats(engine).num_used_kv_blocks > 0))
    first = used.index((True, True))
    assert set(used[:first]) == {(False, True)}, "the first drafts"
    assert set(used[first:-2]) == {(True, True)}
    assert used[-2:] == [(True, False), (False, False)], "the last token needs no draft"


def test_a_request_that_is_drafted_for_counts_as_running() -> None:
    engine = pair()
    engine.add(request())
    for _ in range(20):
        engine.step()
        stats = engine.stats()
        assert stats.num_running + stats.num_waiting == 1


def test_what_the_draft_engine_cannot_do_is_done_without_it() -> None:
    short = SpeculatingEngine(simulated(), simulated(max_seq_len=20))
    chunks = run(short, request())[1]
    assert ids(chunks) == ids(run(simulated(), without_drafts(request()))[1])
    assert {len(chunk.token_ids) for chunk in chunks} == {5, 1}, "drafts while they fit, then none"


def test_what_the_target_cannot_do_is_refused_at_once() -> None:
    with pytest.raises(RequestError, match="field=max_tokens"):
        pair().add(request(max_tokens=5000))


@pytest.mark.parametrize(
    ("field", "value"),
    [("beam_width", 2), ("is_context_only", True), ("draft_input_ids", (20, 21)), ("draft_acceptance_threshold", 0.5)],
)
def test_what_needs_one_round_is_refused_beside_drafts_and_served_without(field: str, value: object) -> None:
    one = request(**{field: value})  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=rf"field={field} .*{field} does not go with num_draft_tokens \(4\)"):
        pair().add(one)
    assert ids(run(pair(), without_drafts(one))[1])


@pytest.mark.parametrize("error_rate", [0.0, 0.3])
def test_logits_come_once_for_each_token(error_rate: float) -> None:
    one = request(max_tokens=12, return_context_logits=True, return_generation_logits=True)
    expected = _extras(run(simulated(), without_drafts(one))[1])
    made = _extras(run(pair(error_rate), one)[1])
    assert made == expected
    assert made.context_logits is not None
    assert made.context_logits.shape == (3, 4096)


def _extras(chunks: list[TokenChunk]) -> ExtraOutputs:
    """Of all chunks of a request, joined."""
    joined = None
    for chunk in chunks:
        joined = merged(joined, chunk.extras)
    assert joined is not None
    return joined


# Drafts that are weighed by their probabilities

LENIENT: dict[str, object] = {"use_draft_logits": True, "draft_acceptance_threshold": 0.001}
SAMPLED: dict[str, object] = {"top_p": 0.9, "seed": 7}


def counts(chunks: list[TokenChunk]) -> tuple[int | None, int | None]:
    """Accepted and drafted."""
    perf = chunks[-1].perf
    assert perf is not None
    return perf.total_accepted_draft_tokens, perf.total_draft_tokens


@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=SAMPLING)
def test_greedy_text_stays_the_same_when_drafts_are_to_be_weighed(sampling: dict[str, object]) -> None:
    greedy = {name: value for name, value in sampling.items() if name not in SAMPLED}
    one = request(**greedy, **LENIENT)  # type: ignore[arg-type]
    plain = request(**greedy)  # type: ignore[arg-type]
    by_ids, weighed = run(pair(), plain)[1], run(pair(), one)[1]
    assert ids(weighed) == ids(by_ids) == ids(run(simulated(), without_drafts(plain))[1])
    assert counts(weighed) == counts(by_ids)


def test_sampled_drafts_that_are_likely_enough_are_accepted_though_others_would_have_come() -> None:
    by_ids = run(pair(), request(**SAMPLED))[1]  # type: ignore[arg-type]
    weighed = run(pair(), request(**SAMPLED, **LENIENT))[1]  # type: ignore[arg-type]
    alone = ids(run(simulated(), without_drafts(request(**SAMPLED)))[1])  # type: ignore[arg-type]
    drafts = ids(run(simulated(error_rate=0.3), without_drafts(request(**SAMPLED)))[1])  # type: ignore[arg-type]
    assert ids(by_ids) == alone
    assert len(ids(weighed)) == 40
    changed = [made for made, chosen in zip(ids(weighed), alone, strict=True) if made != chosen]
    assert changed
    assert set(changed) <= set(drafts)
    accepted_by_ids, _ = counts(by_ids)
    accepted, drafted = counts(weighed)
    assert accepted_by_ids is not None
    assert accepted is not None
    assert drafted is not None
    assert accepted_by_ids < accepted < drafted
    assert accepted == 40 - len(weighed), "each response has one token of the target's own"


def test_without_a_threshold_a_draft_must_be_as_likely_as_to_the_draft_engine() -> None:
    # Of the draft engine's logits the bias is no part: what it makes likely there looks unlikely, and is accepted.
    for sampling, is_same in ((SAMPLED, True), (SAMPLED | {"embedding_bias": {50: 7.0}}, False)):
        by_ids = ids(run(pair(), request(max_tokens=200, **sampling))[1])  # type: ignore[arg-type]
        weighed = run(pair(), request(max_tokens=200, **sampling, use_draft_logits=True))[1]  # type: ignore[arg-type]
        assert (ids(weighed) == by_ids) is is_same


class _Recording(SimulatedEngine):
    """Keeps the requests that it gets."""

    def __init__(self, error_rate: float = 0.0) -> None:
        spec = {"provider": "simulated", "error_rate": error_rate}
        super().__init__(SimulatedEngineSpec.model_validate(spec), VirtualClock())
        self.requests: list[GenerationRequest] = []

    def add(self, request: GenerationRequest) -> None:
        self.requests.append(request)
        super().add(request)


def test_the_target_gets_the_logits_of_each_draft_and_the_client_its_own() -> None:
    target, draft = _Recording(), _Recording(0.3)
    one = request(**SAMPLED, **LENIENT, return_generation_logits=True, max_tokens=12)  # type: ignore[arg-type]
    chunks = run(SpeculatingEngine(target, draft), one)[1]
    logits = _extras(chunks).generation_logits
    assert logits is not None
    assert logits.shape == (12, 4096)
    assert len(target.requests) == len(chunks)
    for round_of in (found.sampling for found in target.requests):
        assert round_of.draft_acceptance_threshold == 0.001
        if round_of.draft_input_ids:
            assert round_of.draft_logits is not None
            rows = round_of.draft_logits.array()
            assert rows.shape == (len(round_of.draft_input_ids), 4096)
            assert tuple(rows.argmax(axis=1)) == round_of.draft_input_ids
    assert {found.sampling.return_generation_logits for found in draft.requests} == {True}
    assert {found.sampling.use_draft_logits for found in target.requests + draft.requests} == {False}


def test_logits_are_asked_for_only_where_drafts_are_weighed() -> None:
    for sampling in ({"use_draft_logits": True}, SAMPLED):
        draft = _Recording(0.3)
        run(SpeculatingEngine(_Recording(), draft), request(**sampling))
        assert {found.sampling.return_generation_logits for found in draft.requests} == {False}


def test_drafts_cannot_be_weighed_where_one_of_the_two_has_no_logits() -> None:
    for is_target, reason in ((True, "it counts no odds"), (False, r"draft_engine \(simulated\) gives no logits: it")):
        lacking, other = simulated(), simulated()
        field = "draft_logits" if is_target else "return_generation_logits"
        lacking.info = msgspec.structs.replace(
            lacking.info, supported=lacking.info.supported - {field}, why_not={field: "it counts no odds"}
        )
        engine = SpeculatingEngine(lacking, other) if is_target else SpeculatingEngine(other, lacking)
        with pytest.raises(RequestError, match=f"field=use_draft_logits .*{reason}"):
            engine.add(request(**SAMPLED, use_draft_logits=True))  # type: ignore[arg-type]
        assert len(ids(run(engine, request(**SAMPLED))[1])) == 40  # type: ignore[arg-type]


class _Unverifying(SimulatedEngine):
    """An engine that takes no drafts."""

    def __init__(self) -> None:
        super().__init__(SimulatedEngineSpec(provider="simulated"), VirtualClock())
        self.info = msgspec.structs.replace(
            self.info, supported=self.info.supported - {"draft_input_ids"}, why_not={"draft_input_ids": "it is proud"}
        )


def test_a_pair_that_does_not_fit_is_refused_when_it_is_loaded() -> None:
    with pytest.raises(SpecError, match=r"field=draft_engine.*cannot draft for provider 'simulated': it is proud"):
        SpeculatingEngine(_Unverifying(), simulated())
    with pytest.raises(SpecError, match="draft_engine has 100 tokens and the engine 4096"):
        SpeculatingEngine(simulated(), simulated(vocab_size=100))


def test_drafts_of_a_client_are_verified_in_the_step_that_ends_the_prefill() -> None:
    engine = simulated()
    expected = ids(run(engine, without_drafts(request()))[1])
    wrong = [*expected[:3], expected[3] + 1, *expected[4:6]]
    for drafts, num_accepted in ((expected[:6], 6), (wrong, 3), ([17, 17], 0), (expected, 39)):
        one = request(num_draft_tokens=0, draft_input_ids=tuple(drafts))
        chunks = run(engine, one)[1]
        assert ids(chunks) == expected
        assert len(chunks[0].token_ids) == num_accepted + 1
        perf = chunks[-1].perf
        assert perf is not None
        assert (perf.total_accepted_draft_tokens, perf.total_draft_tokens) == (num_accepted, min(len(drafts), 39))


def test_drafts_take_their_blocks_and_give_back_those_of_the_refused() -> None:
    # Blocks of 16 for a prompt of 3 and 30 drafts: 3 blocks, with room for 15 more tokens; all drafts are refused.
    engine = simulated()
    engine.add(request(num_draft_tokens=0, max_tokens=60, draft_input_ids=(17,) * 30))
    used = []
    while engine.has_work:
        engine.step()
        used.append(engine.stats().num_used_kv_blocks)
    assert used[:46] == [3] * 46, "the prompt's 3 and 45 of the output's tokens fit the 48 slots"
    assert used[46] == 4
    assert used[-1] == 0


def test_the_drafts_of_a_poor_model_are_wrong_about_as_often_as_it_is_told() -> None:
    right = ids(run(simulated(), request(num_draft_tokens=0, max_tokens=2000))[1])
    poor = ids(run(simulated(error_rate=0.3), request(num_draft_tokens=0, max_tokens=2000))[1])
    assert poor == ids(run(simulated(error_rate=0.3), request(num_draft_tokens=0, max_tokens=2000))[1])
    num_wrong = sum(a != b for a, b in itertools.zip_longest(right, poor))
    assert 500 < num_wrong < 700  # of 2,000: 600 and 2 % more or less, three standard deviations of it are 61
