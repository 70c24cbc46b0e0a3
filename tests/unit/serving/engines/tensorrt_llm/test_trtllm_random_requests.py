# SPDX-License-Identifier: Apache-2.0
"""Random requests through the engine's wrappers on the fake `tensorrt_llm`, and what is left of them.

Each ends once, whatever is done to it: cancels while it waits, prefills and streams, stop strings, deadlines, queue
timeouts, log probabilities, logits, adapters, guides, beams, requests that upstream fails. Then nothing is busy and
nothing is kept.
"""

import gc
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_tensorrt_llm import fake_tensorrt_llm, write_checkpoint, write_engine
from lora_adapters import write_adapter
from pydantic import TypeAdapter
from simulated_release import TOKENIZER
from trtllm_behaviour import Executor

from ensemble_configs.spec.admission_spec import AdmissionSpec, SloSpec
from ensemble_configs.spec.engine.engine_spec import EngineSpec
from ensemble_configs.spec.release_spec import TokenizerSpec
from serving.admission.admitting_engine import AdmittingEngine
from serving.engine_process.ingress import begin, stop
from serving.engine_process.stopping_engine import StoppingEngine
from serving.engines.providers import create_engine
from serving.engines.seam.base import Engine, GenerationRequest, SamplingParams, TokenChunk
from serving.engines.seam.clock import WallClock
from serving.engines.seam.scheduling import Scheduling
from serving.engines.tensorrt_llm.trtllm_engine import TrtLlmEngine
from serving.engines.tensorrt_llm.trtllm_outputs import RunningRequest
from serving.text.detokenization import TextDecoder

pytestmark = pytest.mark.slow

FAILING, LOST = 66, 67  # first prompt tokens: upstream fails the one, and loses cancels of the other
LIMITS: dict[str, object] = {
    "max_seq_len": 512, "max_num_seqs": 8, "max_num_batched_tokens": 128, "num_kv_blocks": 40,
}  # fmt: skip
OF: dict[str, dict[str, object]] = {
    "tensorrt": {"is_gathering_generation_logits": True, "max_beam_width": 2},
    "pytorch": {},
}
MODULES = ["attn_q", "attn_k", "attn_v"]
BUILD: dict[str, dict[str, object]] = {
    "tensorrt": {
        "plugin_config": {"tokens_per_block": 32, "lora_plugin": "auto"},
        "max_beam_width": 2,
        "lora_config": {"lora_target_modules": MODULES, "max_lora_rank": 64},
    },
    "pytorch": {},
}
ADAPTERS = ("one", "two", "three", "bad")  # the last of them cannot be served
LATE = {"[DEADLINE_EXCEEDED", "[UNAVAILABLE"}
STOP_STRINGS = ("the", "a", "an", "of")


@pytest.fixture(params=["tensorrt", "pytorch"])
def started(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[TrtLlmEngine, Executor]]:
    write = {"tensorrt": write_engine, "pytorch": write_checkpoint}[request.param]
    folder = write(tmp_path / "model", **BUILD[request.param])  # type: ignore[arg-type]
    for seed, name in enumerate(ADAPTERS):
        write_adapter(tmp_path / "lora" / name, seed=seed, rank=128 if name == "bad" else 8)
    lora = {"dir": tmp_path / "lora", "target_modules": MODULES, "max_adapters": 3}
    guided = {"guided_decoding_backend": "xgrammar", "tokenizer_dir": TOKENIZER}
    data = {"provider": request.param, "dir": folder, "lora": lora} | guided | LIMITS | OF[request.param]
    with fake_tensorrt_llm():
        engine = create_engine(TypeAdapter[EngineSpec](EngineSpec).validate_python(data))
        assert isinstance(engine, TrtLlmEngine)
        executor = Executor.created[-1]
        executor.failures[FAILING] = "a request that upstream fails"
        executor.deaf = {LOST}
        yield engine, executor
        engine.close()


class Crowd:
    """The callers of one engine process's loop, who do as they like."""

    def __init__(self, engine: TrtLlmEngine, *, is_admitting: bool, seed: int) -> None:
        self.engine: Engine = StoppingEngine(engine, TextDecoder.from_spec(TokenizerSpec(dir=TOKENIZER)))
        if is_admitting:  # requests wait here, and have deadlines; without it they wait upstream
            self.engine = AdmittingEngine(self.engine, AdmissionSpec(), SloSpec(), WallClock())
        self.rng = random.Random(seed)
        self.open: set[int] = set()
        self.ends: Counter[int] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.asked: dict[int, frozenset[str]] = {}  # beside the length, by key
        self.answered: set[str] = set()  # of these, what a request had that ended by itself

    def ask(self, key: int) -> None:
        """Send a request."""
        self.open.add(key)
        if (chunk := begin(self.engine, self._request(key))) is not None:
            self._take(chunk)

    def _request(self, key: int) -> GenerationRequest:
        rng = self.rng
        first = rng.choices([20 + key % 40, FAILING, LOST], [96, 2, 2])[0]
        asked: dict[str, object] = {}
        match rng.randrange(10):
            case 0 | 1:
                asked = {"return_log_probs": True}
            case 2:
                asked = {"return_generation_logits": True}
            case 3:
                asked = {"top_p": 0.9, "return_log_probs": True}
            case 4:
                asked = {"lora_name": rng.choice((*ADAPTERS, "nowhere"))}
            case 5:
                asked = {"guide_type": "regex", "guide": rng.choice(("[a-z]+", "[a-z"))}  # the second does not compile
            case 6:
                asked = {"beam_width": 2, "return_log_probs": rng.random() < 0.5}
        scheduling = Scheduling(
            deadline_ms=rng.choice([None, None, None, 40.0, 400.0]),
            queue_timeout_ms=rng.choice([None, None, None, 30.0, 300.0]),
        )
        self.asked[key] = frozenset(name for name, value in asked.items() if value)
        max_tokens = rng.randint(1, 4) if "return_generation_logits" in asked else rng.randint(1, rng.choice([8, 60]))
        return GenerationRequest(
            key=key,
            input_ids=[first, *(rng.randrange(20, 4000) for _ in range(rng.choice([3, 30, 300])))],
            sampling=SamplingParams(max_tokens=max_tokens, end_id=rng.choice([-1, None]), **asked),  # type: ignore[arg-type]
            stop_strings=(rng.choice(STOP_STRINGS),) if rng.random() < 0.2 else (),
            scheduling=scheduling,
        )

    def leave(self, key: int) -> None:
        """Hang up, or cancel: the engine's loop does not tell one from the other."""
        if key in self.open:
            self._take(stop(self.engine, key))

    def step(self) -> None:
        """Go round the loop once."""
        for chunk in self.engine.step():
            self._take(chunk)

    def _take(self, chunk: TokenChunk) -> None:
        assert chunk.key in self.open, f"a chunk after the last of request {chunk.key}"
        assert chunk.log_probs is None or len(chunk.log_probs) == len(chunk.token_ids)
        if chunk.finish_reason is None and chunk.error is None:
            return
        self.open.remove(chunk.key)
        self.ends[chunk.key] += 1
        if chunk.finish_reason == "length":
            self.answered |= self.asked[chunk.key]
        outcome = chunk.finish_reason or str(chunk.error).partition("]")[0].partition(" ")[0]
        self.outcomes[str(outcome)] += 1


def run_crowd(crowd: Crowd, num_requests: int) -> None:
    rng = crowd.rng
    for key in range(num_requests):
        crowd.ask(key)
        for _ in range(rng.choice([0, 0, 1, 2, 4])):
            crowd.step()
        if rng.random() < 0.35:
            crowd.leave(rng.randrange(max(0, key - 60), key + 1))
        while len(crowd.open) > 120:
            crowd.step()
    deadline_s = time.monotonic() + 60
    while crowd.open or crowd.engine.has_work:
        assert time.monotonic() < deadline_s, f"{len(crowd.open)} requests and the engine do not come to an end"
        crowd.step()


@pytest.mark.parametrize(
    "num_requests", [300, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])]
)
@pytest.mark.parametrize("is_admitting", [True, False], ids=["admission", "no admission"])
def test_random_requests_end_once_each_and_leave_nothing(
    started: tuple[TrtLlmEngine, Executor], num_requests: int, is_admitting: bool
) -> None:
    engine, executor = started
    crowd = Crowd(engine, is_admitting=is_admitting, seed=7)
    num_before = num_known()
    run_crowd(crowd, num_requests)
    assert crowd.ends == dict.fromkeys(range(num_requests), 1)
    expected = {"length", "cancelled", "stop_string", "[INTERNAL", "[INVALID_ARG"}
    assert expected <= crowd.outcomes.keys(), crowd.outcomes
    beams = {"beam_width"} if engine.info.provider == "tensorrt" else set()
    assert crowd.answered >= beams | {"return_log_probs", "return_generation_logits", "lora_name", "guide"}
    assert is_admitting is bool(crowd.outcomes.keys() & LATE), crowd.outcomes
    assert not engine.has_work
    assert executor.death is None
    assert_nothing_is_left(engine, executor)
    assert num_known() == num_before, "a request that has ended is still held"


def num_known() -> int:
    """Return the number of requests in this process's memory."""
    gc.collect()
    return sum(type(one) is RunningRequest for one in gc.get_objects())


def assert_nothing_is_left(engine: TrtLlmEngine, executor: Executor) -> None:
    """Wait until upstream has computed requests with lost cancels and ended what it queued, and check for remains."""
    deadline_s = time.monotonic() + 20
    while (len(engine._llm._loop._tasks) > 1 or executor._running) and time.monotonic() < deadline_s:
        engine.step()
        time.sleep(0.01)
    engine.step()
    assert len(engine._llm._loop._tasks) == 1, "that of the stats"
    assert not engine._requests
    assert not engine._cancels._open
    assert engine._llm.events.empty()
    assert executor.batch.num_free_blocks == executor.batch.num_blocks
    assert executor.adapters.num_users == 0
    assert executor.adapters.num_read == len(ADAPTERS) - 1
    cancels = engine.stats().cancels
    assert cancels is not None
    assert cancels.num_confirmed > 0
    assert (cancels.num_ran_on > 0) is (engine.info.provider == "tensorrt")
