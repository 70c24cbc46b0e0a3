# SPDX-License-Identifier: Apache-2.0
"""The symptom of each behaviour of the fake, there or not, as a caller of `tensorrt_llm` itself sees it."""

import asyncio
import importlib
import itertools
import pickle
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import trtllm_iteration_stats
from fake_tensorrt_llm import write_checkpoint, write_engine
from lora_adapters import write_adapter, write_safetensors
from trtllm_behaviour import Executor
from trtllm_switches import Behaviour

_SOON_S = 0.1


@dataclass
class Upstream:
    """A backend of the fake, as a caller imports it."""

    backend: str
    folder: Path

    def llm(self, *, build: dict[str, object] | None = None, **arguments: Any) -> tuple[Any, Executor]:
        """Make an LLM whose iterations are made by hand, of two requests at most."""
        write: Callable[..., Path] = write_engine if self.backend == "tensorrt" else write_checkpoint
        module = "tensorrt_llm._tensorrt_engine" if self.backend == "tensorrt" else "tensorrt_llm"
        defaults: dict[str, Any] = {"skip_tokenizer_init": True, "max_batch_size": 2, "max_seq_len": 2048}
        model = str(write(self.folder, **(build or {})))
        llm = importlib.import_module(module).LLM(model=model, **(defaults | arguments))
        Executor.created[-1].is_paced = True
        return llm, Executor.created[-1]

    @staticmethod
    def config(name: str, **arguments: object) -> Any:
        """Make a part of an LLM's arguments."""
        return getattr(importlib.import_module("tensorrt_llm.llmapi.llm_args"), name)(**arguments)


def ask(llm: Any, first: int = 20, *, num_tokens: int = 3, call: dict[str, Any] | None = None, **params: Any) -> Any:
    """Send a prompt that begins with `first`."""
    make = importlib.import_module("tensorrt_llm.sampling_params").SamplingParams
    given = {"max_tokens": 20, "end_id": -1, "ignore_eos": True} | params
    others: dict[str, Any] = {"streaming": not given.get("use_beam_search", False)} | (call or {})
    return llm.generate_async({"prompt_token_ids": [first] * num_tokens}, make(**given), **others)


BEAMS: dict[str, Any] = {"use_beam_search": True, "n": 2, "best_of": 2}


async def comes(result: Any) -> bool:
    """Return whether the request gives anything soon."""
    try:
        await asyncio.wait_for(anext(result), _SOON_S)
    except (TimeoutError, StopAsyncIteration):
        return False
    return True


async def ended(executor: Executor, result: Any, *, num_ticks: int = 40) -> BaseException | None:
    """Iterate until the request has ended; return the error that it ended with."""
    try:
        for _ in range(num_ticks):
            executor.tick()
            while not result.finished and await comes_at_once(result):
                pass
    except Exception as exc:
        return exc
    return None


async def comes_at_once(result: Any) -> bool:
    """Take one output, if it is there."""
    for _ in range(3):
        await asyncio.sleep(0)
    if result._queue.empty():
        return False
    await anext(result)
    return True


async def _cancel_of_waiting(upstream: Upstream) -> tuple[Any, Any, Executor]:
    llm, executor = upstream.llm(max_batch_size=1)
    running, waiting = ask(llm, 20), ask(llm, 21)
    executor.tick()
    waiting.abort()
    for _ in range(3):
        executor.tick()
    return running, waiting, executor


async def _never_answered(upstream: Upstream) -> bool:
    running, waiting, executor = await _cancel_of_waiting(upstream)
    assert await ended(executor, running) is None
    return not await comes(waiting)


async def _not_answered_while_it_waits(upstream: Upstream) -> bool:
    running, waiting, executor = await _cancel_of_waiting(upstream)
    is_late = not await comes(waiting)
    if is_late:
        assert await ended(executor, running) is None
        assert await ended(executor, waiting) is None
    assert waiting.outputs[0].finish_reason == "cancelled"
    return is_late


async def _abort_kills_the_other(upstream: Upstream) -> bool:
    llm, executor = upstream.llm(gather_generation_logits=True)
    scored, other = ask(llm, 20, logprobs=1), ask(llm, 21)
    executor.tick()
    scored.abort()
    return await ended(executor, other) is not None


async def _abort_keeps_blocks(upstream: Upstream) -> bool:
    llm, executor = upstream.llm(max_num_tokens=64, enable_chunked_prefill=True)
    make = importlib.import_module("tensorrt_llm.disaggregated_params").DisaggregatedParams
    ask(llm, num_tokens=200, call={"disaggregated_params": make(request_type="context_only")}).abort()
    for _ in range(5):
        executor.tick()
    again = ask(llm, num_tokens=200, call={"disaggregated_params": make(request_type="context_only")})
    executor.tick()
    again.abort()
    executor.tick()
    return executor.batch.num_free_blocks < executor.batch.num_blocks


async def _log_probs_kill_the_other(upstream: Upstream) -> bool:
    llm, executor = upstream.llm(speculative_config=upstream.config("MTPDecodingConfig", num_nextn_predict_layers=1))
    other = ask(llm, 21)
    ask(llm, 20, logprobs=1)
    return await ended(executor, other) is not None


async def _error_of_another_beside_drafts(upstream: Upstream, **params: Any) -> str:
    """Return what another request is told when one with `params` is made, of an engine that goes on after it."""
    drafts = upstream.config("MedusaDecodingConfig", max_draft_len=2, num_medusa_heads=2)
    arguments: dict[str, Any] = {"speculative_config": drafts, "gather_generation_logits": True, "max_beam_width": 2}
    llm, executor = upstream.llm(build={"max_beam_width": 2}, **arguments)
    other = ask(llm, 21)
    ask(llm, 20, **params)
    error = await ended(executor, other)
    assert await ended(executor, ask(llm, 22)) is None
    return str(error)


async def _logits_fail_the_other_and_not_the_next(upstream: Upstream) -> bool:
    error = await _error_of_another_beside_drafts(upstream, logprobs=1)
    return "draft tokens supports returning generation logits" in error


async def _beams_fail_the_other_and_not_the_next(upstream: Upstream) -> bool:
    return "beamWidth == 1" in await _error_of_another_beside_drafts(upstream, **BEAMS)


async def _bad_guide_fails_the_other_and_not_the_next(upstream: Upstream) -> bool:
    (upstream.folder / "tokenizer").mkdir(parents=True)
    llm, executor = upstream.llm(
        guided_decoding_backend="xgrammar", skip_tokenizer_init=False, tokenizer=str(upstream.folder / "tokenizer")
    )
    other = ask(llm, 21)
    ask(llm, 20, guided_decoding=guide(regex="a("))
    error = await ended(executor, other)
    assert await ended(executor, ask(llm, 22)) is None
    return "Regex parsing error" in str(error)


def guide(**words: str) -> Any:
    """Make upstream's parameters of guided decoding."""
    return importlib.import_module("tensorrt_llm.sampling_params").GuidedDecodingParams(**words)


async def _beams_kill_the_other(upstream: Upstream) -> bool:
    llm, executor = upstream.llm(build={"max_beam_width": 2}, max_beam_width=2)
    other = ask(llm, 21)
    ask(llm, 20, stop_token_ids=[3], **BEAMS)
    return await ended(executor, other) is not None


async def _output_is_cut(upstream: Upstream) -> bool:
    llm, executor = upstream.llm(kv_cache_config=upstream.config("KvCacheConfig", max_tokens=64))
    result = ask(llm, num_tokens=10, max_tokens=500)
    await ended(executor, result, num_ticks=80)
    # 64 tokens in all; a compiled engine keeps one of its two blocks for the output, of which one token is sure.
    num_left = 54 if upstream.backend == "pytorch" else 23
    return bool(result.finished) and len(result.outputs[0].token_ids) == num_left


async def _smaller_width_fails(upstream: Upstream) -> bool:
    llm, executor = upstream.llm(max_beam_width=2, disable_overlap_scheduler=True)
    return "is not equal to max_beam_width" in str(await ended(executor, ask(llm)))


async def _overlap_is_refused(upstream: Upstream) -> bool:
    try:
        upstream.llm(max_beam_width=2)
    except ValueError as exc:
        return "disable_overlap_scheduler" in str(exc)
    return False


async def _beams_share_a_list(upstream: Upstream) -> bool:
    llm, executor = upstream.llm(build={"max_beam_width": 2}, max_beam_width=2, gather_generation_logits=True)
    result = ask(llm, logprobs=1, **BEAMS)
    assert await ended(executor, result) is None
    first, second = result.outputs
    assert first.token_ids != second.token_ids
    return [list(row) for row in first.logprobs] == [list(row) for row in second.logprobs]


async def _logits_need_work(upstream: Upstream) -> bool:
    sizes: dict[str, object] = {"world_size": 3, "tp_size": 3}
    llm, executor = upstream.llm(build=sizes, tensor_parallel_size=3, gather_generation_logits=True)
    result = ask(llm, return_generation_logits=True, call={"streaming": False})
    assert await ended(executor, result) is None
    logits = result.outputs[0].generation_logits
    return logits.device == "cuda" and len(logits.data[0]) == 4098


async def _unfinished_beam_raises(upstream: Upstream) -> bool:
    llm, executor = upstream.llm(build={"max_beam_width": 2}, max_beam_width=2)
    executor.unfinished_beams.add(20)
    return "Unknown finish reason" in str(await ended(executor, ask(llm, 20, **BEAMS)))


async def _several_tokens_come_together(upstream: Upstream) -> bool:
    config = upstream.config("NGramDecodingConfig", max_draft_len=3, max_matching_ngram_size=2)
    llm, executor = upstream.llm(speculative_config=config)
    result, sizes = ask(llm), [0]
    for _ in range(4):
        executor.tick()
        while await comes_at_once(result):
            sizes.append(len(result.outputs[0].token_ids))
    return max(after - before for before, after in itertools.pairwise(sizes)) > 1


async def _what_would_not_end_does_not_begin(upstream: Upstream) -> bool:
    llm, executor = upstream.llm(kv_cache_config=upstream.config("KvCacheConfig", max_tokens=8 * 32))
    ask(llm, 20, max_tokens=180)
    second = ask(llm, 21, max_tokens=180)
    executor.tick()
    return not await comes(second)


async def _other_beam_width_gets_no_turn(upstream: Upstream) -> bool:
    llm, executor = upstream.llm(build={"max_beam_width": 2}, max_beam_width=2)
    older, other = ask(llm, 20, max_tokens=6, **BEAMS), ask(llm, 21)
    for _ in range(2):
        executor.tick()
    assert await comes(other), "of its prefill"
    executor.tick()
    is_passed_over = not await comes(other)
    assert await ended(executor, older) is None
    assert await ended(executor, other) is None
    return is_passed_over


async def _long_stream_that_may_pause_is_refused(upstream: Upstream) -> bool:
    policy = upstream.config("SchedulerConfig", capacity_scheduler_policy="MAX_UTILIZATION")
    llm, executor = upstream.llm(max_num_tokens=64, enable_chunked_prefill=False, scheduler_config=policy)
    assert await ended(executor, ask(llm, 20, num_tokens=40, max_tokens=25)) is None
    assert await ended(executor, ask(llm, 20, num_tokens=40, max_tokens=26, call={"streaming": False})) is None
    error = await ended(executor, ask(llm, 21, num_tokens=40, max_tokens=26))
    return "potentially greater than max input length" in str(error)


async def _no_stats_before_a_request(upstream: Upstream) -> bool:
    llm, _ = upstream.llm()
    started_s = time.monotonic()
    async for _ in llm.get_stats_async(timeout=0.5):
        pass
    return time.monotonic() - started_s < 0.4


async def _no_stats_after_a_timeout(upstream: Upstream) -> bool:
    llm, executor = upstream.llm(**telling(upstream))
    ask(llm)
    async for _ in llm.get_stats_async(timeout=0.05):
        pass
    executor.tick()
    return not [row async for row in llm.get_stats_async(timeout=0.05)]


async def _stats_are_late(upstream: Upstream) -> bool:
    trtllm_iteration_stats.PAUSE_S, pause_s = 1.0, trtllm_iteration_stats.PAUSE_S
    try:
        llm, executor = upstream.llm(**telling(upstream))
        result, rows = ask(llm), None
        rows = aiter(llm.get_stats_async(timeout=10))
        executor.is_paced = False
        await anext(result)
        first_token_s = time.monotonic()
        await anext(rows)
        return time.monotonic() - first_token_s > 0.7
    finally:
        trtllm_iteration_stats.PAUSE_S = pause_s


async def _old_rows_are_lost(upstream: Upstream) -> bool:
    limit: dict[str, Any] = {"iter_stats_max_iterations": 4} if upstream.backend == "tensorrt" else {"max_stats_len": 4}
    llm, executor = upstream.llm(**telling(upstream), **limit)
    ask(llm)
    for _ in range(10):
        executor.tick()
    reader = aiter(llm.get_stats_async(timeout=0.05))
    with executor._changed:
        executor.stats.send()
    return [row["iter"] async for row in reader] == [7, 8, 9, 10]


def telling(upstream: Upstream) -> dict[str, Any]:
    """Return the arguments that make the backend tell stats."""
    return {"enable_iter_perf_stats": True} if upstream.backend == "pytorch" else {}


async def _long_prompt_is_refused_at_the_call(upstream: Upstream) -> bool:
    llm, _ = upstream.llm(max_num_tokens=64, enable_chunked_prefill=False, max_seq_len=2048)
    try:
        ask(llm, num_tokens=65 if upstream.backend == "pytorch" else 2040)
    except ValueError:
        return True
    return False


async def _what_does_not_pickle_raises_at_the_call(upstream: Upstream) -> bool:
    llm, _ = upstream.llm()
    try:
        ask(llm, call={"scheduling_params": lambda: None})
    except (AttributeError, TypeError, pickle.PicklingError):
        return True
    return False


LORA_BUILD: dict[str, object] = {
    "plugin_config": {"tokens_per_block": 32, "lora_plugin": "auto"},
    "lora_config": {"lora_target_modules": ["attn_q", "attn_k", "attn_v"], "max_lora_rank": 64},
}


def llm_with_adapters(
    upstream: Upstream, *, max_host: int | None = None, hidden_size: int = 16, **more: Any
) -> tuple[Any, Executor]:
    """Make an LLM that takes adapters of q, k and v; `max_host` are kept in host memory."""
    config = upstream.config(
        "LoraConfig", lora_target_modules=["attn_q", "attn_k", "attn_v"], max_loras=max_host, max_cpu_loras=max_host
    )
    build: dict[str, object] = LORA_BUILD if upstream.backend == "tensorrt" else {"hidden_size": hidden_size}
    return upstream.llm(build=build, enable_lora=True, lora_config=config, **more)


def adapter(folder: Path, number: int, *, seed: int = 1, modules: tuple[str, ...] = ("q_proj", "v_proj")) -> Any:
    """Write an adapter, and return the argument that names it."""
    path = str(write_adapter(folder, modules=modules, seed=seed))
    make = importlib.import_module("tensorrt_llm.executor").LoRARequest
    return make(lora_name=folder.name, lora_int_id=number, lora_path=path)


async def said(executor: Executor, result: Any) -> list[int]:
    """Return the tokens of a request that ends well."""
    assert await ended(executor, result) is None
    return list(result.outputs[0].token_ids)


async def _first_weights_stay(upstream: Upstream) -> bool:
    llm, executor = llm_with_adapters(upstream)
    base = await said(executor, ask(llm))
    one, other = adapter(upstream.folder / "one", 1), adapter(upstream.folder / "other", 1, seed=2)
    first = await said(executor, ask(llm, call={"lora_request": one}))
    second = await said(executor, ask(llm, call={"lora_request": other}))
    assert base not in (first, second)
    return first == second


async def _bad_adapter_is_no_request_error(upstream: Upstream) -> bool:
    llm, executor = llm_with_adapters(upstream)
    bad = adapter(upstream.folder / "bad", 1)
    (upstream.folder / "bad/adapter_model.safetensors").unlink()
    try:
        error = await ended(executor, ask(llm, call={"lora_request": bad}))
    except FileNotFoundError:
        return True
    assert "Failed to load LoRA adapter" in str(error)
    return False


async def _evicted_adapter_that_is_gone_stops_everybody(upstream: Upstream) -> bool:
    llm, executor = llm_with_adapters(upstream, max_host=1, max_batch_size=2)
    one, other = adapter(upstream.folder / "one", 1), adapter(upstream.folder / "other", 2, seed=2)
    await said(executor, ask(llm, call={"lora_request": one}))
    running = [ask(llm, 30, max_tokens=2), ask(llm, 31, max_tokens=60)]
    executor.tick()
    before = ask(llm, 32, max_tokens=2, call={"lora_request": other})  # which evicts the first
    again = ask(llm, 33, call={"lora_request": one})  # in the cache while it comes
    shutil.rmtree(upstream.folder / "one")
    assert await ended(executor, running[0]) is None
    assert await ended(executor, before, num_ticks=4) is None
    is_dead = await ended(executor, again, num_ticks=30) is not None or not again.finished
    return is_dead and not running[1].finished


async def _too_many_adapters_at_once_fail(upstream: Upstream) -> bool:
    llm, executor = llm_with_adapters(upstream, max_host=1)
    one, other = adapter(upstream.folder / "one", 1), adapter(upstream.folder / "other", 2, seed=2)
    running = ask(llm, call={"lora_request": one})
    executor.tick()
    error = await ended(executor, ask(llm, call={"lora_request": other}))
    assert await ended(executor, running) is None
    return "PEFT Cache is full" in str(error)


async def _module_of_another_engine_changes_nothing(upstream: Upstream) -> bool:
    llm, executor = llm_with_adapters(upstream)
    outputs = []
    for number, value in ((1, 0.5), (2, 0.25)):  # of a module that the LLM was not made for
        request = adapter(upstream.folder / str(number), number)
        layer = "base_model.model.model.layers.0"
        tensors = {
            f"{layer}.{module}.lora_{side}.weight": np.full((8, 16), of_module, np.float16)
            for module, of_module in (("self_attn.q_proj", 1.0), ("mlp.up_proj", value))
            for side in "AB"
        }
        write_safetensors(upstream.folder / str(number) / "adapter_model.safetensors", tensors)
        outputs.append(await said(executor, ask(llm, call={"lora_request": request})))
    return outputs[0] == outputs[1]


async def _adapter_of_a_smaller_model_stops_everybody(upstream: Upstream) -> bool:
    llm, executor = llm_with_adapters(upstream, hidden_size=32)
    running = ask(llm, 30, max_tokens=30)
    other = ask(llm, 31, call={"lora_request": adapter(upstream.folder / "small", 1)})
    error = await ended(executor, other)
    assert await ended(executor, running) is None
    assert error is None or "lora_weights has to few values" in str(error)
    return not running.finished and not other.finished


Symptom = Callable[[Upstream], Awaitable[bool]]
BOTH = ("tensorrt", "pytorch")
SYMPTOMS: dict[Behaviour, tuple[tuple[str, ...], Symptom]] = {
    Behaviour.CANCEL_DROPS_WAITING: (("pytorch",), _never_answered),
    Behaviour.CANCEL_WAITS_FOR_SCHEDULE: (("tensorrt",), _not_answered_while_it_waits),
    Behaviour.ABORT_OF_STREAMED_LOG_PROBS_CRASHES: (("tensorrt",), _abort_kills_the_other),
    Behaviour.ABORT_OF_CONTEXT_ONLY_STRANDS_BLOCKS: (BOTH, _abort_keeps_blocks),
    Behaviour.SPECULATION_DIES_OF_LOG_PROBS: (("pytorch",), _log_probs_kill_the_other),
    Behaviour.LOGITS_BESIDE_DRAFTS_FAIL_EVERYBODY: (("tensorrt",), _logits_fail_the_other_and_not_the_next),
    Behaviour.BEAMS_BESIDE_DRAFTS_FAIL_EVERYBODY: (("tensorrt",), _beams_fail_the_other_and_not_the_next),
    Behaviour.BAD_GUIDES_FAIL_EVERYBODY: (("tensorrt",), _bad_guide_fails_the_other_and_not_the_next),
    Behaviour.BEAMS_WITH_STOP_TOKENS_CRASH: (("tensorrt",), _beams_kill_the_other),
    Behaviour.SEQUENCES_ARE_CLAMPED_TO_THE_CACHE: (BOTH, _output_is_cut),
    Behaviour.ONLY_THE_FULL_BEAM_WIDTH: (("pytorch",), _smaller_width_fails),
    Behaviour.BEAMS_NEED_NO_OVERLAP: (("pytorch",), _overlap_is_refused),
    Behaviour.BEAMS_SHARE_LOG_PROBS: (("tensorrt",), _beams_share_a_list),
    Behaviour.LOGITS_ARE_ON_THE_GPU_AND_PADDED: (("tensorrt",), _logits_need_work),
    Behaviour.UNFINISHED_BEAM_RAISES: (("tensorrt",), _unfinished_beam_raises),
    Behaviour.SEVERAL_TOKENS_AT_ONCE: (("pytorch",), _several_tokens_come_together),
    Behaviour.NOTHING_IS_EVICTED: (BOTH, _what_would_not_end_does_not_begin),
    Behaviour.BEAM_WIDTHS_TAKE_TURNS: (("tensorrt",), _other_beam_width_gets_no_turn),
    Behaviour.LONG_STREAMS_THAT_MAY_PAUSE_ARE_REFUSED: (("tensorrt",), _long_stream_that_may_pause_is_refused),
    Behaviour.STATS_BEGIN_WITH_A_REQUEST: (BOTH, _no_stats_before_a_request),
    Behaviour.STATS_END_BY_TIMEOUT: (BOTH, _no_stats_after_a_timeout),
    Behaviour.STATS_COME_IN_BATCHES: (BOTH, _stats_are_late),
    Behaviour.STATS_ROWS_ARE_DROPPED: (BOTH, _old_rows_are_lost),
    Behaviour.ARGUMENTS_ARE_CHECKED: (BOTH, _long_prompt_is_refused_at_the_call),
    Behaviour.REQUESTS_ARE_PICKLED: (BOTH, _what_does_not_pickle_raises_at_the_call),
    Behaviour.ADAPTERS_ARE_KNOWN_BY_NUMBER: (BOTH, _first_weights_stay),
    Behaviour.FAILED_LOADS_ARE_NOT_OF_THE_REQUEST: (BOTH, _bad_adapter_is_no_request_error),
    Behaviour.EVICTED_ADAPTERS_ARE_READ_AGAIN: (("pytorch",), _evicted_adapter_that_is_gone_stops_everybody),
    Behaviour.HOST_CACHE_OF_ADAPTERS_FILLS: (("tensorrt",), _too_many_adapters_at_once_fail),
    Behaviour.OTHER_MODULES_ARE_LEFT_OUT: (BOTH, _module_of_another_engine_changes_nothing),
    Behaviour.ADAPTERS_OF_OTHER_MODELS_STOP_EVERYBODY: (("pytorch",), _adapter_of_a_smaller_model_stops_everybody),
}
