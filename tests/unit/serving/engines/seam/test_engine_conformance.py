# SPDX-License-Identifier: Apache-2.0
"""Tests of what every engine provider must do, on each of them; a new provider is one row in `PROVIDERS`."""

import functools
import itertools
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fake_tensorrt_llm import SteppedEngine, fake_tensorrt_llm, write_checkpoint, write_engine
from pydantic import TypeAdapter
from trtllm_behaviour import Executor

from ensemble_configs.releases.built_engine import load_built_engine
from ensemble_configs.releases.engine_fit import whole_sequence_of
from ensemble_configs.spec.engine.engine_spec import EngineSpec
from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec, TensorRtEngineSpec
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from serving.engine_process.engine_warm_up import warm_up
from serving.engines.providers import create_engine
from serving.engines.seam.base import Beam, Engine, FinishReason, GenerationRequest, PerfMetrics, SamplingParams
from serving.engines.seam.clock import VirtualClock
from serving.engines.seam.packed_array import PackedArray
from trireme.base.errors import RequestError
from trireme.base.project_files import CODE_ROOT

pytestmark = pytest.mark.slow

DEMO_MODEL = CODE_ROOT / "examples/demo_model/openvino/target"

# Small enough that a test can fill it: four requests at once, chunks of 64 tokens.
LIMITS = {"max_seq_len": 1024, "max_num_seqs": 4, "max_num_batched_tokens": 64, "num_kv_blocks": 64}


def simulated(**changes: int) -> Engine:
    spec = SimulatedEngineSpec.model_validate({"provider": "simulated"} | LIMITS | changes)
    return create_engine(spec, clock=VirtualClock())


def openvino(**changes: object) -> Engine:
    spec = {"provider": "openvino", "dir": DEMO_MODEL, "num_threads": 1} | LIMITS | changes
    return create_engine(OpenVinoEngineSpec.model_validate(spec))


def tensorrt(**changes: object) -> Engine:
    with tempfile.TemporaryDirectory() as folder:
        model: dict[str, object] = {"dir": write_engine(Path(folder), max_beam_width=3)}
        model["is_gathering_generation_logits"] = True  # for log probabilities
        spec = {"provider": "tensorrt"} | model | LIMITS | changes
        return stepped(with_room(TensorRtEngineSpec.model_validate(spec), changes))


def pytorch(**changes: object) -> Engine:
    with tempfile.TemporaryDirectory() as folder:
        # TorchSampler has no seeds; that it refuses them: test_trtllm_sampling.
        model = {"dir": write_checkpoint(Path(folder)), "sampler": "trtllm"}
        spec = {"provider": "pytorch"} | model | LIMITS | changes
        return stepped(with_room(PyTorchEngineSpec.model_validate(spec), changes))


def pytorch_of_1_3(**changes: object) -> Engine:
    with tempfile.TemporaryDirectory() as folder:
        model = {"dir": write_checkpoint(Path(folder))}  # there is one sampler
        spec = {"provider": "pytorch", "tensorrt_llm": "1.3"} | model | LIMITS | changes
        return stepped(with_room(PyTorchEngineSpec.model_validate(spec), changes), version="1.3.0rc29")


def with_room(spec: EngineSpec, changes: Mapping[str, object]) -> EngineSpec:
    """Return a spec whose KV cache has room for one whole sequence with its beams.

    TensorRT-LLM would shorten the sequence, and vLLM refuse to load.

    A cache that a test does not name grows; beside one that it names, sequences are as long as that has room for.
    """
    if isinstance(spec, VllmEngineSpec) and "num_kv_blocks" in changes:
        assert spec.num_kv_blocks is not None
        assert spec.kv_block_tokens is not None, "of the spec that is proved"
        return spec.model_copy(update={"max_seq_len": spec.num_kv_blocks * spec.kv_block_tokens})
    if not isinstance(spec, TensorRtEngineSpec | PyTorchEngineSpec):
        return spec
    whole, block_tokens = whole_sequence_of(spec), block_tokens_of(spec)
    assert spec.num_kv_blocks is not None, "of LIMITS"

    def longest(num_blocks: int) -> int:
        return whole.longest(num_blocks=num_blocks, block_tokens=block_tokens)

    if "num_kv_blocks" in changes:
        return spec.model_copy(update={"max_seq_len": longest(spec.num_kv_blocks)})
    enough = next(n for n in itertools.count(spec.num_kv_blocks) if longest(n) == spec.max_seq_len)
    return spec.model_copy(update={"num_kv_blocks": enough})


def block_tokens_of(spec: TensorRtEngineSpec | PyTorchEngineSpec) -> int:
    if isinstance(spec, PyTorchEngineSpec):
        return spec.kv_block_tokens
    return load_built_engine(spec.dir).build_config.plugin_config.tokens_per_block


def stepped(spec: EngineSpec, *, version: str = "1.2.1") -> Engine:
    """Return an engine on the fake that iterates once for each step.

    Our engine's waiting for a fake that runs freely is tested in test_trtllm_engine.
    """
    with fake_tensorrt_llm(version):
        engine = create_engine(spec)
        return SteppedEngine(engine, Executor.created[-1])


@dataclass(frozen=True)
class Provider:
    """A provider, and how its engine is made for these tests."""

    create: Callable[..., Engine]
    is_exact: bool  # a request's tokens do not depend on its company
    is_paced: bool = True  # a step is an iteration of the batch
    is_evicting: bool = True  # a request may begin that cannot end without the blocks of another one
    is_last_token_cached: bool = False  # a sequence may be as long as the KV cache, and no token longer
    beams: tuple[tuple[str, object], ...] = ()  # changes to the spec for beams of BEAM_WIDTH
    has_log_probs_of_beams: bool = True


BEAM_WIDTH = 3
OF_TRTLLM: dict[str, Any] = {"is_evicting": False, "is_last_token_cached": True}
OF_TENSORRT: dict[str, Any] = OF_TRTLLM | {"beams": (("max_beam_width", BEAM_WIDTH),), "has_log_probs_of_beams": False}
OF_PYTORCH: dict[str, Any] = OF_TRTLLM | {"beams": (("max_beam_width", BEAM_WIDTH), ("is_overlap_scheduler", False))}
OF_VLLM: dict[str, Any] = {"is_last_token_cached": True}


PROVIDERS = [
    pytest.param(Provider(simulated, is_exact=True), id="simulated"),
    pytest.param(Provider(openvino, is_exact=False), id="openvino"),
    pytest.param(Provider(tensorrt, is_exact=True, **OF_TENSORRT), id="tensorrt"),
    pytest.param(Provider(pytorch, is_exact=True, **OF_PYTORCH), id="pytorch"),
    pytest.param(Provider(pytorch_of_1_3, is_exact=True, **OF_PYTORCH), id="pytorch-1.3"),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "provider" in metafunc.fixturenames:
        spec = metafunc.config.getoption("--engine-spec")
        metafunc.parametrize("provider", PROVIDERS if spec is None else [real_provider(spec)], indirect=True)


def real_provider(file: Path) -> object:
    """Return the engine of a spec's JSON, which the limits of each test are put over."""
    described = json.loads(file.read_text(encoding="utf-8"))

    def create(**changes: object) -> Engine:
        spec = TypeAdapter[EngineSpec](EngineSpec).validate_python(described | LIMITS | changes)
        return create_engine(with_room(spec, changes))

    traits: dict[str, Any] = {"tensorrt": OF_TENSORRT, "pytorch": OF_PYTORCH, "vllm": OF_VLLM}.get(
        described["provider"], {}
    )
    provider = Provider(create, is_exact=False, **({"is_paced": False} | traits))
    return pytest.param(provider, id=described["provider"], marks=pytest.mark.gpu)


KEYS = itertools.count(1)


@dataclass
class Output:
    """The output of one request."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: str | None = None
    num_chunks: int = 0
    log_probs: list[float] = field(default_factory=list)
    perf: PerfMetrics | None = None
    beams: list[Beam] | None = None

    @property
    def is_done(self) -> bool:
        return self.finish_reason is not None or self.error is not None


class Session:
    """An engine that is driven, and what it makes; the rules of `TokenChunk` are checked on the way."""

    def __init__(self, engine: Engine, *, is_paced: bool = True, is_evicting: bool = True) -> None:
        self.engine = engine
        self.is_paced = is_paced
        self.is_evicting = is_evicting
        self.outputs: dict[int, Output] = {}

    def add(self, prompt: list[int], max_tokens: int = 8, **sampling: float | None) -> int:
        params = {"max_tokens": max_tokens, "end_id": -1} | sampling
        return self.add_params(prompt, SamplingParams(**params))  # type: ignore[arg-type]

    def add_params(self, prompt: list[int], sampling: SamplingParams) -> int:
        key = next(KEYS)
        self.engine.add(GenerationRequest(key=key, input_ids=prompt, sampling=sampling))
        self.outputs[key] = Output()
        return key

    def cancel(self, key: int) -> None:
        self.engine.cancel(key)
        del self.outputs[key]  # so that a chunk of it is an error from now on

    def step(self) -> dict[int, list[int]]:
        """Return the new tokens of each request in one step."""
        chunks = self.engine.step()
        tokens = {chunk.key: chunk.token_ids for chunk in chunks}
        assert len(tokens) == len(chunks), "more than one chunk for a request"
        for chunk in chunks:
            output = self.outputs[chunk.key]
            assert not output.is_done, "a chunk after the last"
            assert chunk.token_ids or chunk.finish_reason or chunk.error, "an empty chunk"
            output.token_ids += chunk.token_ids
            output.finish_reason, output.error, output.perf = chunk.finish_reason, chunk.error, chunk.perf
            assert chunk.log_probs is None or len(chunk.log_probs) == len(chunk.token_ids)
            output.log_probs += chunk.log_probs or []
            output.beams = None if chunk.extras is None else chunk.extras.beams
            output.num_chunks += 1
        return tokens

    def drain(self) -> dict[int, Output]:
        """Run until nothing is left to do."""
        for _ in range(20_000):
            if not self.engine.has_work:
                return self.outputs
            self.step()
            stats = self.engine.stats()
            assert stats.num_running <= self.engine.info.max_num_seqs
            assert stats.num_used_kv_blocks <= stats.num_kv_blocks
        raise AssertionError("the engine does not come to an end")

    def step_until(self, is_so: Callable[[], bool], *, num_steps: int) -> None:
        """Run `num_steps` steps; on an engine that batches by itself, as many as it takes within a second."""
        deadline_s = time.monotonic() + 1.0
        for number in itertools.count():
            is_due = number >= num_steps if self.is_paced else is_so() or time.monotonic() > deadline_s
            if is_due:
                return
            self.step()

    def tokens_of(self, prompt: list[int], max_tokens: int = 8, **sampling: float | None) -> list[int]:
        """Return the output of one request alone."""
        key = self.add(prompt, max_tokens, **sampling)
        return self.drain()[key].token_ids

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.engine.info.kv_block_tokens)

    @property
    def longest(self) -> int:
        """Return the tokens that prompt and output of one request may have in the KV cache."""
        info = self.engine.info
        return min(info.max_seq_len, info.num_kv_blocks * info.kv_block_tokens)

    def fill_kv_cache(self) -> tuple[int, int]:
        """Return the keys of an older request that goes on and a younger one that has to wait for the older's blocks.

        The younger one has begun. On an engine that begins nothing which it could not finish, the younger one waits for
        all of its blocks.
        """
        info = self.engine.info
        older = self.add(prompt_of(self.longest - 3 * info.kv_block_tokens, 1), max_tokens=3 * info.kv_block_tokens)
        younger = self.add(prompt_of(info.kv_block_tokens, 2), max_tokens=3 * info.kv_block_tokens)
        must_have_begun = self.is_paced and self.is_evicting
        while not (set(self.step()) == {older} and (self.outputs[younger].token_ids or not must_have_begun)):
            assert not self.outputs[older].is_done, "the cache was never full"
        return older, younger


def prompt_of(num_tokens: int, seed: int = 0) -> list[int]:
    """Return a prompt that differs with every seed."""
    return [20 + (7 * seed + 13 * i * (seed + 1)) % 1000 for i in range(num_tokens)]


def come_and_go(session: Session, num_requests: int, *, max_prompt_tokens: int, max_tokens: int) -> None:
    """Add and cancel requests at random; those that are not cancelled all get their tokens."""
    rng = random.Random(0)
    max_tokens_of: dict[int, int] = {}
    for _ in range(num_requests):
        num_prompt_tokens = rng.randint(1, max_prompt_tokens)
        num_tokens = rng.randint(1, rng.choice([3, max_tokens]))
        key = session.add(prompt_of(num_prompt_tokens, rng.randrange(6)), num_tokens)
        max_tokens_of[key] = num_tokens
        for _ in range(rng.choice([0, 1, 10])):
            session.step()
        running = [key for key, output in session.outputs.items() if not output.is_done]
        if running and rng.random() < 0.4:
            cancelled = rng.choice(running)
            session.cancel(cancelled)
            del max_tokens_of[cancelled]
    outputs = session.drain()
    assert {key: len(output.token_ids) for key, output in outputs.items()} == max_tokens_of
    assert {output.finish_reason for output in outputs.values()} == {FinishReason.LENGTH}


def refuse_shortened(engine: Engine, changes: Mapping[str, object]) -> None:
    """Fail where upstream has lowered `max_seq_len`: what the cases ask then is not what they say."""
    if "num_kv_blocks" not in changes:
        assert engine.info.max_seq_len == LIMITS["max_seq_len"], "the KV cache has no room for a whole sequence"
    upstream = engine.executor.max_seq_len if isinstance(engine, SteppedEngine) else engine.info.max_seq_len
    assert engine.info.max_seq_len <= upstream, "requests are promised more than upstream gives"


@pytest.fixture(scope="module")
def engines() -> Iterator[Callable[..., Engine]]:
    """Yield a maker of engines by provider and limits; each is loaded once, since tests leave it as they found it."""
    created: list[Engine] = []

    @functools.cache
    def create(provider: Provider, **changes: object) -> Engine:
        created.append(provider.create(**changes))
        refuse_shortened(created[-1], changes)
        return created[-1]

    yield create
    for engine in created:
        engine.close()


@pytest.fixture
def provider(request: pytest.FixtureRequest) -> Provider:
    assert isinstance(request.param, Provider)
    return request.param


@pytest.fixture
def session_of(provider: Provider, engines: Callable[..., Engine]) -> Iterator[Callable[..., Session]]:
    """Yield a maker of sessions on an engine with other limits; what a session leaves behind is an error."""
    opened: list[Session] = []

    def open_session(**changes: object) -> Session:
        engine = engines(provider, **changes)
        opened.append(Session(engine, is_paced=provider.is_paced, is_evicting=provider.is_evicting))
        return opened[-1]

    yield open_session
    for session in opened:
        session.drain()
        stats = session.engine.stats()
        assert (stats.num_running, stats.num_waiting, stats.num_used_kv_blocks) == (0, 0, 0)


@pytest.fixture
def session(session_of: Callable[..., Session]) -> Session:
    return session_of()


# What it is


def test_info_tells_what_the_engine_is(session: Session) -> None:
    info = session.engine.info
    assert info.vocab_size > 1000
    assert info.kv_block_tokens in (16, 32, 64)
    assert (info.max_seq_len, info.max_num_seqs, info.num_kv_blocks) == (1024, 4, 64)
    assert all(0 <= token_id < info.vocab_size for token_id in info.end_ids)
    assert "max_tokens" in info.supported
    assert info.supported <= set(SamplingParams.__struct_fields__)


def test_blocks_are_as_large_as_info_says(session: Session) -> None:
    block_tokens = session.engine.info.kv_block_tokens
    key = session.add(prompt_of(block_tokens), max_tokens=2 * block_tokens)
    used = []
    while not session.outputs[key].is_done:
        session.step()
        used.append(session.engine.stats().num_used_kv_blocks)
    # The prompt fills the first block; each token but the last, which is never fed back, takes a slot behind it.
    expected = [1] + [2] * block_tokens + [3] * (block_tokens - 1)
    if session.is_paced:
        assert used[:-1] == expected[:-1]
    else:
        assert max(used) in (2, 3)


def test_stats_count_running_and_waiting_requests_and_steps(session: Session) -> None:
    before = session.engine.stats()
    assert (before.num_running, before.num_waiting) == (0, 0)
    for i in range(7):
        session.add(prompt_of(5, i), max_tokens=4 if session.is_paced else 200)
    assert session.engine.stats().num_waiting + session.engine.stats().num_running == 7
    session.step_until(lambda: session.engine.stats().num_running == 4, num_steps=1)
    stats = session.engine.stats()
    assert (stats.num_running, stats.num_waiting) == (4, 3)
    assert stats.num_steps == before.num_steps + 1 if session.is_paced else stats.num_steps > before.num_steps
    assert 0 < stats.num_used_kv_blocks <= stats.num_kv_blocks == session.engine.info.num_kv_blocks


def test_an_engine_that_was_warmed_up_has_generated_and_holds_nothing(session: Session) -> None:
    num_steps = session.engine.stats().num_steps
    warm_up(session.engine)
    stats = session.engine.stats()
    assert stats.num_steps > num_steps
    assert (session.engine.has_work, stats.num_running, stats.num_used_kv_blocks) == (False, 0, 0)
    assert len(session.tokens_of(prompt_of(4))) == 8


def test_an_idle_engine_has_no_work_and_its_step_is_harmless(session: Session) -> None:
    assert not session.engine.has_work
    assert session.engine.step() == []
    assert len(session.tokens_of(prompt_of(4))) == 8


# What it generates


def test_greedy_generation_is_deterministic(session: Session) -> None:
    assert session.tokens_of(prompt_of(20), 30) == session.tokens_of(prompt_of(20), 30)


def test_requests_together_get_what_each_gets_alone(provider: Provider, session: Session) -> None:
    prompts = [prompt_of(10 + 3 * i, i) for i in range(10)]
    alone = [session.tokens_of(prompt, 10 + i) for i, prompt in enumerate(prompts)]
    keys = [session.add(prompt, 10 + i) for i, prompt in enumerate(prompts)]
    outputs = session.drain()
    together = [outputs[key].token_ids for key in keys]
    if provider.is_exact:
        assert together == alone
    else:  # a close call may go another way; a mix-up would not leave most first tokens as they were
        assert [len(tokens) for tokens in together] == [len(tokens) for tokens in alone]
        assert sum(a[0] == b[0] for a, b in zip(together, alone, strict=True)) >= 8


def test_equal_prompts_at_the_same_time_do_not_disturb_each_other(session: Session) -> None:
    keys = [session.add(prompt_of(12), 20) for _ in range(4)]
    outputs = session.drain()
    assert [len(outputs[key].token_ids) for key in keys] == [20] * 4
    assert len({tuple(outputs[key].token_ids[:3]) for key in keys}) == 1


@pytest.mark.parametrize("max_tokens", [1, 2, 33])
def test_max_tokens_is_exact_and_ends_with_length(session: Session, max_tokens: int) -> None:
    key = session.add(prompt_of(9), max_tokens)
    output = session.drain()[key]
    assert (len(output.token_ids), output.finish_reason) == (max_tokens, FinishReason.LENGTH)


def find_late_token(session: Session) -> tuple[list[int], int, int]:
    """Return a prompt, a token that its greedy output has first at an index >= 2, and that index."""
    for seed in range(20):
        prompt = prompt_of(10, seed)
        output = session.tokens_of(prompt, 16)
        for index in range(2, 12):
            if output[index] not in output[:index]:
                return prompt, output[index], index
    raise AssertionError("every output repeats its first two tokens")


def test_the_end_token_stops_the_generation_and_is_part_of_it(session: Session) -> None:
    prompt, end_id, index = find_late_token(session)
    key = session.add(prompt, 16, end_id=end_id)
    output = session.drain()[key]
    assert (len(output.token_ids), output.token_ids[-1]) == (index + 1, end_id)
    assert output.finish_reason is FinishReason.STOP


def test_an_end_token_at_the_very_end_counts_as_stop(session: Session) -> None:
    prompt, end_id, index = find_late_token(session)
    key = session.add(prompt, index + 1, end_id=end_id)
    assert session.drain()[key].finish_reason is FinishReason.STOP


def test_no_end_token_counts_before_min_tokens(session: Session) -> None:
    prompt, end_id, index = find_late_token(session)
    key = session.add(prompt, 16, end_id=end_id, min_tokens=index + 2)
    assert len(session.drain()[key].token_ids) > index + 2


def test_min_tokens_above_max_tokens_gives_max_tokens(session: Session) -> None:
    assert len(session.tokens_of(prompt_of(5), 3, end_id=None, min_tokens=5)) == 3


def test_end_id_minus_one_means_no_end_token(session: Session) -> None:
    # Alone it would stop at the model's own end token within this length, or has none.
    key = session.add(prompt_of(3), 200, end_id=-1, min_tokens=4)
    output = session.drain()[key]
    assert (len(output.token_ids), output.finish_reason) == (200, FinishReason.LENGTH)


@pytest.fixture
def seeded(session: Session) -> Session:
    """Return the session, where its engine has seeds; an engine without refuses them, as a test below checks."""
    skip_unless_supported(session, "seed")
    return session


def skip_unless_supported(session: Session, field: str) -> None:
    """Skip where an engine refuses a parameter; that it does, a test below checks for every one."""
    if field not in session.engine.info.supported:
        pytest.skip(session.engine.info.why_not[field])


def test_the_same_seed_gives_the_same_output_and_another_seed_another(seeded: Session) -> None:
    first, again, other = (
        seeded.tokens_of(prompt_of(12), 24, top_p=0.95, temperature=2.0, seed=seed) for seed in (7, 7, 8)
    )
    assert first == again
    assert first != other


def test_without_a_seed_every_request_is_sampled_anew(session: Session) -> None:
    first, other = (session.tokens_of(prompt_of(12), 24, top_p=0.95, temperature=2.0) for _ in range(2))
    assert first != other


@pytest.mark.parametrize(
    "penalty",
    [{"repetition_penalty": 1.8}, {"presence_penalty": 1.5}, {"frequency_penalty": 1.5}],
    ids=["repetition", "presence", "frequency"],
)
@pytest.mark.parametrize("how", [{}, {"top_p": 0.95, "seed": 3}], ids=["greedy", "sampled"])
def test_a_penalty_changes_the_output_and_the_same_penalty_in_the_same_way(
    session: Session, penalty: dict[str, float], how: dict[str, float], request: pytest.FixtureRequest
) -> None:
    skip_unless_supported(session, *penalty)
    if "seed" in how:
        request.getfixturevalue("seeded")
    without = session.tokens_of(prompt_of(12), 60, **how)
    first, again = (session.tokens_of(prompt_of(12), 60, **how, **penalty) for _ in range(2))
    assert without != first == again


@pytest.mark.parametrize(
    "sampling",
    [{"temperature": 0.0, "top_p": 0.9}, {"top_k": 1, "temperature": 3.0}, {"temperature": 0.7}],
    ids=["temperature-0", "top-k-1", "neither-top-k-nor-top-p"],
)
def test_greedy_means_the_same_as_the_default(session: Session, sampling: dict[str, float]) -> None:
    prompt = prompt_of(12)
    seed = {"seed": 5} if "seed" in session.engine.info.supported else {}
    assert session.tokens_of(prompt, 12, **seed, **sampling) == session.tokens_of(prompt, 12)


def test_every_token_has_a_log_probability_where_asked_for_and_the_tokens_are_the_same(session: Session) -> None:
    skip_unless_supported(session, "return_log_probs")
    plain = session.tokens_of(prompt_of(12), 20)
    key = session.add(prompt_of(12), 20, return_log_probs=True)
    output = session.drain()[key]
    assert output.token_ids == plain
    assert len(output.log_probs) == 20
    assert all(-30 < log_prob <= 0 for log_prob in output.log_probs)
    assert len({round(log_prob, 3) for log_prob in output.log_probs}) > 1


@pytest.fixture
def beam_session(provider: Provider, session_of: Callable[..., Session]) -> Session:
    """Return a session for beams, on an engine of its own where searching with beams takes another one."""
    return session_of(**dict(provider.beams))


def test_beams_come_once_and_whole_the_best_first(provider: Provider, beam_session: Session) -> None:
    session, has_log_probs = beam_session, provider.has_log_probs_of_beams
    skip_unless_supported(session, "beam_width")
    key = session.add(prompt_of(12), 10, beam_width=BEAM_WIDTH, return_log_probs=has_log_probs)
    output = session.drain()[key]
    assert (output.num_chunks, output.finish_reason) == (1, FinishReason.LENGTH)
    beams = output.beams
    assert beams is not None
    assert [len(beam.token_ids) for beam in beams] == [10] * BEAM_WIDTH
    assert len({tuple(beam.token_ids) for beam in beams}) == BEAM_WIDTH
    assert output.token_ids == beams[0].token_ids
    if not has_log_probs:
        with pytest.raises(RequestError, match="return_log_probs"):
            session.add(prompt_of(12), 10, beam_width=BEAM_WIDTH, return_log_probs=True)
        return
    assert [len(beam.log_probs or ()) for beam in beams] == [10] * BEAM_WIDTH
    sums = [beam.cum_log_prob or 0.0 for beam in beams]
    assert sums == sorted(sums, reverse=True)
    assert sums == pytest.approx([sum(beam.log_probs or ()) for beam in beams], abs=1e-3)


def test_a_beam_search_can_be_cancelled_and_hurts_no_other_request(beam_session: Session) -> None:
    session = beam_session
    skip_unless_supported(session, "beam_width")
    expected = session.tokens_of(prompt_of(8), 20, beam_width=BEAM_WIDTH)
    searching = session.add(prompt_of(12), 60, beam_width=BEAM_WIDTH)
    other = session.add(prompt_of(8), 20, beam_width=BEAM_WIDTH)
    for _ in range(5):
        session.step()
    session.cancel(searching)
    assert len(session.drain()[other].token_ids) == len(expected)


def test_the_last_chunk_tells_when_what_happened(session: Session) -> None:
    before_ns = time.time_ns()
    key = session.add(prompt_of(12), 5)
    perf = session.drain()[key].perf
    assert perf is not None
    times = [perf.arrival_time_ns, perf.first_scheduled_time_ns, perf.first_token_time_ns, perf.last_token_time_ns]
    assert before_ns <= times[0] <= times[1] <= times[2] < times[3] <= time.time_ns()


def test_what_is_known_of_a_running_request_can_be_asked_before_it_is_cancelled(session: Session) -> None:
    key = session.add(prompt_of(12), 50)
    assert session.engine.perf_of(key) is None or not session.is_paced
    while not session.outputs[key].token_ids:
        session.step()
    perf = session.engine.perf_of(key)
    assert perf is not None
    assert perf.first_token_time_ns > 0
    session.cancel(key)
    assert session.engine.perf_of(key) is None


# What it refuses


class FutureParams(SamplingParams, frozen=True, kw_only=True):
    """Sampling parameters as the seam may know them one day."""

    num_beams: int = 1


def test_a_parameter_that_the_engine_does_not_know_is_refused_by_name(session: Session) -> None:
    with pytest.raises(RequestError, match=r"num_beams \(4\) is not supported by the provider") as refusal:
        session.add_params(prompt_of(4), FutureParams(max_tokens=2, num_beams=4))
    assert refusal.value.facts["field"] == "num_beams"


ASKED: dict[str, object] = {
    "top_p_min": 0.1, "top_p_decay": 0.5, "top_p_reset_id": 5, "bad_words": ((5,),), "embedding_bias": {5: 1.0},
    "return_context_logits": True, "return_generation_logits": True, "beam_width": BEAM_WIDTH, "length_penalty": 0.5,
    "early_stopping": True, "beam_search_diversity_rate": 0.5, "guide_type": "json", "guide": "{}", "lora_task_id": 1,
    "lora_name": "a", "draft_input_ids": (5,), "num_draft_tokens": 2, "use_draft_logits": True,
    "lookahead_window_size": 2, "lookahead_ngram_size": 2,
    "lookahead_verification_set_size": 2, "repetition_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1,
    "prompt_embedding_table": PackedArray("float16", (1, 2), bytes(4)), "prompt_vocab_size": 1,
    "prompt_table_extra_ids": (5,), "lora_weights": PackedArray("float16", (1, 2), bytes(4)),
    "lora_config": PackedArray("int32", (1, 3), bytes(12)), "draft_acceptance_threshold": 0.5,
    "draft_logits": PackedArray("float32", (1, 2), bytes(8)), "decoder_input_ids": (5,), "decoder_input_lengths": 1,
    "encoder_input_features": PackedArray("float16", (1, 2), bytes(4)), "encoder_output_lengths": 1,
    "cross_attention_mask": PackedArray("bool", (1, 2), bytes(2)), "skip_cross_attn_blocks": True,
    "mrope_rotary_cos_sin": PackedArray("float32", (2,), bytes(8)), "mrope_position_deltas": 1,
    "context_phase_params": b"x", "is_context_only": True, "retention_token_range_starts": (0,),
    "retention_token_range_ends": (-1,), "retention_token_range_priorities": (5,),
    "retention_token_range_durations_ms": (5,), "retention_decode_priority": 5, "retention_decode_duration_ms": 5,
    "return_log_probs": True, "temperature": 0.5, "top_k": 5, "top_p": 0.5, "seed": 5, "min_tokens": 2, "end_id": 5,
}  # fmt: skip


def test_the_table_above_has_every_sampling_parameter() -> None:
    assert ASKED.keys() | {"max_tokens"} == set(SamplingParams.__struct_fields__)


OF_BEAMS = {"beam_width", "length_penalty", "early_stopping", "beam_search_diversity_rate"}
# What says nothing alone; tests/unit/documents/test_contract_table.py sends these with what belongs to them.
NOT_ALONE = {"context_phase_params", "retention_token_range_starts", "retention_token_range_ends"} | {
    "retention_token_range_priorities",
    "retention_token_range_durations_ms",
}


@pytest.mark.parametrize("name", sorted(ASKED.keys() - NOT_ALONE))
def test_a_parameter_is_either_honoured_or_refused_with_its_name_and_the_providers(
    session: Session, beam_session: Session, name: str
) -> None:
    if name in OF_BEAMS and name in beam_session.engine.info.supported:
        session = beam_session
        width = {} if name == "beam_width" else {"beam_width": BEAM_WIDTH}
        key = session.add_params(prompt_of(4), SamplingParams(max_tokens=2, end_id=-1, **{name: ASKED[name]}, **width))  # type: ignore[arg-type]
        assert session.drain()[key].token_ids
        return
    sampling = SamplingParams(max_tokens=2, **{name: ASKED[name]})  # type: ignore[arg-type]
    if name in session.engine.info.supported:
        key = session.add_params(prompt_of(4), sampling)
        assert session.drain()[key].token_ids
        return
    with pytest.raises(RequestError) as refusal:
        session.add_params(prompt_of(4), sampling)
    assert refusal.value.facts["field"] == name
    assert refusal.value.facts["provider"] == session.engine.info.provider
    assert "; " in refusal.value.message, "what to do"


def test_a_parameter_that_asks_for_nothing_is_accepted(session: Session) -> None:
    key = session.add_params(prompt_of(4), FutureParams(max_tokens=2, end_id=-1))
    assert len(session.drain()[key].token_ids) == 2


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "message"),
    [(0, 1, "input_ids is empty"), (1000, 25, "max_seq_len 1024")],
    ids=["empty", "longer-than-a-sequence"],
)
def test_what_it_cannot_serve_is_refused_at_once(
    session: Session, num_prompt_tokens: int, max_tokens: int, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        session.add(prompt_of(num_prompt_tokens), max_tokens)


def test_what_can_never_fit_the_kv_cache_is_refused_and_what_just_fits_is_served(
    provider: Provider,
    session_of: Callable[..., Session],
) -> None:
    session = session_of(num_kv_blocks=8)
    # The last token is never fed back; an engine may have room for it all the same, or not know.
    longest = session.longest + (not provider.is_last_token_cached)
    message = "cannot fit the KV cache" if not provider.is_last_token_cached else f"max_seq_len {longest}"
    with pytest.raises(RequestError, match=message):
        session.add(prompt_of(longest - 1), 2)
    assert len(session.tokens_of(prompt_of(longest - 1), 1)) == 1
    assert len(session.tokens_of(prompt_of(10), longest - 10)) == longest - 10


def test_one_refused_request_does_not_hurt_another(session: Session) -> None:
    expected = session.tokens_of(prompt_of(8), 10)
    key = session.add(prompt_of(8), 10)
    session.step()
    with pytest.raises(RequestError):
        session.add(prompt_of(1000), 1000)
    session.step()
    assert session.drain()[key].token_ids == expected


# How it schedules


def test_a_short_request_added_later_finishes_before_a_long_one(session: Session) -> None:
    long = session.add(prompt_of(8, 1), 100 if session.is_paced else 800)
    for _ in range(3):
        session.step()
    short = session.add(prompt_of(8, 2), 5)
    while not session.outputs[short].is_done:
        session.step()
    assert not session.outputs[long].is_done
    assert 0 < len(session.outputs[long].token_ids) < 20 or not session.is_paced


def test_tokens_come_as_they_are_made(session: Session) -> None:
    key = session.add(prompt_of(8), 10 if session.is_paced else 200)
    num_chunks = session.drain()[key].num_chunks
    assert num_chunks == 10 if session.is_paced else num_chunks > 10


def test_a_long_prompt_does_not_stop_the_others(session: Session) -> None:
    running = session.add(prompt_of(8, 1), 40 if session.is_paced else 400)
    session.step_until(lambda: bool(session.outputs[running].token_ids), num_steps=1)
    num_before = len(session.outputs[running].token_ids)
    long = session.add(prompt_of(640, 2), 1)  # ten chunks of 64 tokens
    while not session.outputs[long].is_done:
        assert running in session.step() or not session.is_paced
    assert len(session.outputs[running].token_ids) - num_before >= 10 - (not session.is_paced)


def test_more_requests_than_the_batch_holds_all_finish(session: Session) -> None:
    keys = [session.add(prompt_of(5 + i, i), 1 + i % 7) for i in range(30)]
    outputs = session.drain()
    assert [len(outputs[key].token_ids) for key in keys] == [1 + i % 7 for i in range(30)]


def test_requests_start_in_the_order_they_came(session: Session) -> None:
    keys = [session.add(prompt_of(20, i), 5 + i % 3) for i in range(12)]
    first_steps: dict[int, int] = {}
    for number in itertools.count():
        for key in session.step():
            first_steps.setdefault(key, number)
        if not session.engine.has_work:
            break
    if session.is_paced:
        assert [first_steps[key] for key in keys] == sorted(first_steps.values())
    else:  # of those that start together, any may be seen first
        assert max(first_steps[key] for key in keys[:4]) <= min(first_steps[key] for key in keys[-4:])


def test_requests_that_do_not_fit_the_kv_cache_together_all_finish(session_of: Callable[..., Session]) -> None:
    session = session_of(num_kv_blocks=8)
    half = session.longest // 2
    lengths = [(5 + 37 * i % (half - 5), 1 + 61 * i % half) for i in range(20)]
    keys = [session.add(prompt_of(num_prompt_tokens, i), n) for i, (num_prompt_tokens, n) in enumerate(lengths)]
    outputs = session.drain()
    assert [len(outputs[key].token_ids) for key in keys] == [max_tokens for _, max_tokens in lengths]
    assert {outputs[key].finish_reason for key in keys} == {FinishReason.LENGTH}


def test_prompts_that_fill_the_kv_cache_with_blocks_they_reuse_take_turns(session_of: Callable[..., Session]) -> None:
    session = session_of(num_kv_blocks=8)
    block_tokens = session.engine.info.kv_block_tokens
    for seed in (1, 2):  # four blocks each stay in the cache, if the engine keeps them
        session.tokens_of(prompt_of(4 * block_tokens, seed), 1)
    num_tokens = min(6 * block_tokens, session.longest - 2)
    keys = [session.add(prompt_of(num_tokens, seed), 2) for seed in (1, 2)]
    outputs = session.drain()
    assert [outputs[key].finish_reason for key in keys] == [FinishReason.LENGTH] * 2


# How it cancels


def test_nothing_follows_a_cancel_and_its_blocks_are_free_within_two_steps(session: Session) -> None:
    info = session.engine.info
    other = session.add(prompt_of(8, 1), 30)
    cancelled = session.add(prompt_of(5 * info.kv_block_tokens, 2), 200)
    while not (session.outputs[cancelled].token_ids and session.engine.stats().num_used_kv_blocks >= 6):
        assert not session.outputs[cancelled].token_ids or not session.is_paced
        session.step()
    session.cancel(cancelled)

    def is_free() -> bool:
        num_other_tokens = 8 + len(session.outputs[other].token_ids)
        return session.engine.stats().num_used_kv_blocks <= session.num_blocks(num_other_tokens)

    session.step_until(is_free, num_steps=2)
    assert is_free()
    assert len(session.drain()[other].token_ids) == 30


def test_a_cancelled_engine_has_work_until_its_blocks_are_free(session: Session) -> None:
    session.cancel(session.add(prompt_of(100), 50))
    key = session.add(prompt_of(100), 50)
    session.step()
    session.cancel(key)
    session.step_until(lambda: not session.engine.has_work, num_steps=2)
    assert not session.engine.has_work
    assert session.engine.stats().num_used_kv_blocks == 0


def test_a_cancel_before_the_first_step_leaves_nothing(session: Session) -> None:
    session.cancel(session.add(prompt_of(8), 10))
    assert session.drain() == {}


def test_a_cancel_in_the_middle_of_a_prefill_leaves_nothing(session: Session) -> None:
    key = session.add(prompt_of(640), 10)
    session.step()
    session.cancel(key)
    session.drain()
    assert len(session.tokens_of(prompt_of(640), 2)) == 2


def test_a_waiting_request_can_be_cancelled(session: Session) -> None:
    running = [session.add(prompt_of(8, i), 10) for i in range(4)]
    waiting = [session.add(prompt_of(8, i), 10) for i in range(4, 7)]
    session.step()
    session.cancel(waiting[1])
    outputs = session.drain()
    assert {key: len(output.token_ids) for key, output in outputs.items()} == dict.fromkeys(
        [*running, waiting[0], waiting[2]], 10
    )


def test_cancelling_an_unknown_or_finished_request_is_ignored(session: Session) -> None:
    session.engine.cancel(next(KEYS))
    key = session.add(prompt_of(8), 3)
    session.drain()
    session.engine.cancel(key)
    assert session.outputs[key].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("is_older_cancelled", [True, False])
def test_a_cancel_in_a_full_kv_cache_hurts_no_other_request(
    session_of: Callable[..., Session], is_older_cancelled: bool
) -> None:
    session = session_of(num_kv_blocks=8)
    older, younger = session.fill_kv_cache()
    session.cancel(older if is_older_cancelled else younger)
    (output,) = session.drain().values()
    assert output.finish_reason is FinishReason.LENGTH
    assert len(output.token_ids) == 3 * session.engine.info.kv_block_tokens


def test_requests_that_come_and_go_at_random_in_a_full_kv_cache_all_end_well(
    session_of: Callable[..., Session],
) -> None:
    session = session_of(num_kv_blocks=8)
    num_kv_tokens = 8 * session.engine.info.kv_block_tokens
    come_and_go(session, 40, max_prompt_tokens=min(num_kv_tokens * 3 // 4, session.longest - 40), max_tokens=40)


def test_closing_with_running_requests_is_quiet(provider: Provider, capfd: pytest.CaptureFixture[str]) -> None:
    engine = provider.create()
    session = Session(engine)
    for i in range(6):
        session.add(prompt_of(50, i), 20)
    session.step()
    engine.close()
    del session, engine
    said = capfd.readouterr()
    if provider.is_paced:
        assert said == ("", "")
    else:  # upstream tells what it does
        assert "Traceback" not in said.out + said.err
