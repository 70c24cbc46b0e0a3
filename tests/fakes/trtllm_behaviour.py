# SPDX-License-Identifier: Apache-2.0
"""What the fake `tensorrt_llm` does when it is called: in-flight batching over a paged cache, hashed tokens, stats.

The signatures are generated (`trtllm_generator`). Free-running as the real one, in a thread; a paced executor iterates
when the test says so, and returns when everything it made has been taken.
"""

import asyncio
import contextlib
import hashlib
import importlib
import itertools
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from serving.engines.paged_batch import PagedBatch, PlannedStep, Sequence
from serving.engines.toy_hash import hash_tokens

BLOCKS_OF_THE_GPU = 1024  # what the fake's memory fraction comes to
DEFAULT_MAX_BATCH_SIZE, DEFAULT_MAX_NUM_TOKENS = 2048, 8192
_ITERATION_S = 0.001
_TAKEN_TIMEOUT_S = 20.0
_OUTPUTS = Path(__file__).parent / "trtllm_facts" / "outputs.json"


class Unlisted:
    """A class that the facts name and do not describe: nobody can make one by hand."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        if args or kwargs:
            raise TypeError(f"the facts do not say what {type(self).__name__} takes")

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Unstated:
    """A default that the facts know only in words."""

    def __init__(self, words: str) -> None:
        self._words = words

    def __repr__(self) -> str:
        return self._words


def check_instance(given: dict[str, Any], **classes: type) -> None:
    """Refuse arguments of another class."""
    for name, expected in classes.items():
        if given[name] is not None and not isinstance(given[name], expected):
            raise TypeError(f"{name} must be a {expected.__name__}, got {given[name]!r}")


def check_args(args: Any, *, backend: str, backends: dict[str, list[str]]) -> None:
    """Cross-checks of the facts: what a backend does not decode with, and what an engine has fixed."""
    speculation = args.speculative_config
    if speculation is not None and backend not in backends[type(speculation).__name__]:
        raise ValueError(f"{type(speculation).__name__} is not supported by the backend {backend}")
    if args.guided_decoding_backend is not None and args.skip_tokenizer_init:
        raise ValueError("guided decoding needs a tokenizer")
    if backend != "tensorrt":
        return
    if args.kv_cache_config.dtype != "auto":
        raise ValueError("kv_cache_config.dtype must be auto with an engine")
    if args.guided_decoding_backend not in (None, "xgrammar"):
        raise ValueError("an engine decodes with xgrammar only")
    mapping = _config_of(args)["pretrained_config"]["mapping"]
    for ours, theirs in (("tensor_parallel_size", "tp_size"), ("pipeline_parallel_size", "pp_size")):
        if ours in args.model_fields_set and getattr(args, ours) != mapping[theirs]:
            raise ValueError(f"{ours} differs from the engine's {mapping[theirs]}")


def _config_of(args: Any) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((Path(args.model) / "config.json").read_text(encoding="utf-8"))
    return config


class CompletionOutput:
    """One sequence of a request; grows in place."""

    def __init__(self) -> None:
        self.index = 0
        self.text = ""
        self.token_ids: list[int] = []
        self.cumulative_logprob: float | None = None
        self.logprobs: list[dict[int, Any]] = []
        self.prompt_logprobs: list[dict[int, Any]] = []
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.generation_logits: Any = None
        self.disaggregated_params: Any = None
        self.request_perf_metrics: Any = None


# On the class as well, where a real dataclass with slots has them.
for _name in vars(CompletionOutput()):
    setattr(CompletionOutput, _name, None)


class _Logprob:
    def __init__(self, logprob: float, rank: int) -> None:
        self.logprob, self.rank = logprob, rank


class RequestOutput:
    """A request; iterating gives the request itself again, each time with more tokens."""

    prompt = None
    context_logits: Any = None

    def __init__(
        self, number: int, prompt_token_ids: list[int], executor: "Executor", outputs: list[CompletionOutput]
    ) -> None:
        self._number = number
        self._prompt_token_ids = prompt_token_ids
        self._executor = executor
        self._outputs = outputs
        self._is_done = False
        self._loop = asyncio.get_running_loop()  # as upstream, which makes no asynchronous queue without one
        self._queue: asyncio.Queue[Callable[[], None]] = asyncio.Queue()
        self._has_change = False  # applied, and perhaps not dealt with yet
        self.num_untaken = 0  # of what the executor has made; changed under its lock

    @property
    def request_id(self) -> int:
        return self._number

    @property
    def prompt_token_ids(self) -> list[int]:
        return self._prompt_token_ids

    @property
    def outputs(self) -> list[CompletionOutput]:
        return self._outputs

    @property
    def finished(self) -> bool:
        return self._is_done

    def abort(self) -> None:
        """Stop the request; its last output says `cancelled`."""
        self._executor.abort(self)

    def result(self, timeout: float | None = None) -> "RequestOutput":
        raise NotImplementedError("the fake is asynchronous")

    async def aresult(self) -> "RequestOutput":
        """The request when it has ended."""
        async for _ in self:
            pass
        return self

    def __await__(self) -> Any:
        return self.aresult().__await__()

    def __aiter__(self) -> "RequestOutput":
        return self

    async def __anext__(self) -> "RequestOutput":
        if self._has_change:  # the caller has come back, so it has dealt with that
            self._executor.note_taken(self)
            self._has_change = False
        if self._is_done:
            raise StopAsyncIteration
        change = await self._queue.get()
        try:
            change()
        except Exception:
            self._is_done = True
            self._loop.call_soon(self._executor.note_taken, self)  # once the caller has dealt with it
            raise
        self._has_change = True
        return self

    def put(self, change: Callable[[], None]) -> None:
        """From the executor's thread: something to apply when the caller takes it."""
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody takes it any more
            self._loop.call_soon_threadsafe(self._queue.put_nowait, change)

    def end(self) -> None:
        """Nothing follows."""
        self._is_done = True


def _perf_metrics(running: "_Running", num_blocks: int, *, is_last: bool) -> Any:
    """What a request knows of itself, under the names of the facts; the fake reuses and drafts nothing."""
    names = json.loads(_OUTPUTS.read_text(encoding="utf-8"))["request_perf_metrics"]
    metrics = SimpleNamespace(
        **{
            group: SimpleNamespace(**dict.fromkeys(names[group], 0))
            for group in ("timing_metrics", "kv_cache_metrics", "speculative_decoding")
        }
    )
    timing = metrics.timing_metrics
    timing.arrival_time, timing.first_scheduled_time, timing.first_token_time = running.times
    timing.last_token_time = _now() if is_last else timedelta(0)
    metrics.kv_cache_metrics.num_total_allocated_blocks = metrics.kv_cache_metrics.num_new_allocated_blocks = num_blocks
    return metrics


def _now() -> timedelta:
    return timedelta(seconds=time.monotonic())


class _Running:
    def __init__(
        self, number: int, result: RequestOutput, params: Any, sequence: Sequence, error: type, given: dict[str, Any]
    ) -> None:
        self.number, self.result, self.params, self.sequence, self.error = number, result, params, sequence, error
        self.given = given
        self.held: list[int] = []  # until the end, of one that does not stream
        self.is_aborted = False
        self.times = [_now()]  # of its arrival, first iteration and first token


class Executor:
    """The batch behind one `LLM`."""

    created: ClassVar[list["Executor"]] = []  # the newest last, for tests

    def __init__(self, args: Any, *, backend: str) -> None:
        config = _config_of(args)
        self.args, self.backend = args, backend
        self._torch = importlib.import_module("torch")
        build = config.get("build_config", {})
        self.vocab_size = config.get("vocab_size") or config["pretrained_config"]["vocab_size"]
        kv = args.kv_cache_config
        self.block_tokens = build.get("plugin_config", {}).get("tokens_per_block", kv.tokens_per_block)
        self.batch = PagedBatch(
            max_num_seqs=args.max_batch_size or build.get("max_batch_size", DEFAULT_MAX_BATCH_SIZE),
            max_num_batched_tokens=args.max_num_tokens or DEFAULT_MAX_NUM_TOKENS,
            num_blocks=min(BLOCKS_OF_THE_GPU, (kv.max_tokens or 10**9) // self.block_tokens),
            block_tokens=self.block_tokens,
        )
        self.calls: list[dict[str, Any]] = []  # what generate_async was given
        self.is_end_token_kept = backend == "pytorch"
        self.are_log_probs_of_all_tokens = backend == "pytorch"  # or of the last output's
        self.is_without_log_probs = False
        self.failures: dict[int, str] = {}  # by first prompt token: requests that fail alone
        self.death: Exception | None = None
        self.is_paced = False  # iterations run only by `iterate`
        self._is_telling_stats = backend == "tensorrt" or args.enable_iter_perf_stats
        self._running: dict[int, _Running] = {}
        self._numbers = itertools.count(1)
        self._num_iterations = 0
        self._stats: list[str] = []
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._num_untaken_stats = 0
        self._has_stats: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._is_shut_down = False
        self._thread = threading.Thread(target=self._run_free, daemon=True)
        Executor.created.append(self)
        self._thread.start()

    # The LLM's side

    def submit(self, given: dict[str, Any], output_class: Any, completion_class: Any, error: type) -> RequestOutput:
        """Queue a request."""
        params, prompt = given["sampling_params"], given["inputs"]["prompt_token_ids"]
        if params is None or (params.end_id is None and self.args.skip_tokenizer_init):
            raise ValueError("without a tokenizer sampling_params.end_id must be set")
        num_beams = params.n if params.use_beam_search else 1
        if num_beams > (self.args.max_beam_width or 1):
            raise ValueError(f"{num_beams} beams > max_beam_width {self.args.max_beam_width}")
        if params.n != 1 and not params.use_beam_search:
            raise NotImplementedError("the fake samples one sequence of a request")
        with self._changed:
            if self.death is not None:
                raise RuntimeError("the executor is shut down")
            self.calls.append(given)
            number = next(self._numbers)
            completions = [completion_class() for _ in range(num_beams)]
            result: RequestOutput = output_class(number, prompt, self, completions)
            ends = {params.end_id, *(params.stop_token_ids or ())} - {None, -1}
            sequence = Sequence(
                key=number,
                num_tokens=len(prompt),
                max_num_tokens=len(prompt) + params.max_tokens,
                min_num_tokens=len(prompt) + (params.min_tokens or 1) - 1,
                end_ids=frozenset() if params.ignore_eos else frozenset(ends),
                tokens=self._tokens(prompt, params),
            )
            self._running[number] = _Running(number, result, params, sequence, error, given)
            self.batch.add(sequence)
            self._changed.notify_all()
        return result

    def abort(self, result: RequestOutput) -> None:
        """Mark a request; the next iteration ends it."""
        with self._changed:
            if running := self._running.get(result.request_id):
                running.is_aborted = True
            self._changed.notify_all()

    def get_stats(self, timeout: float | None) -> list[dict[str, Any]]:
        """What has not been told yet."""
        raise NotImplementedError("the fake is asynchronous")

    async def get_stats_async(self, timeout: float | None) -> AsyncIterator[dict[str, Any]]:
        """What is told until nothing comes for `timeout` seconds."""
        self._has_stats = (asyncio.get_running_loop(), asyncio.Event())
        _, has_stats = self._has_stats
        while True:
            with self._changed:
                rows, self._stats = self._stats, []
            for row in rows:
                yield json.loads(row)
                with self._changed:
                    self._num_untaken_stats -= 1
                    self._changed.notify_all()
            if rows:
                continue
            try:
                async with asyncio.timeout(timeout):
                    await has_stats.wait()
            except TimeoutError:
                return
            has_stats.clear()

    def shutdown(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_shut_down = True
            self._changed.notify_all()
        self._thread.join()

    def die(self) -> None:
        """What happens when a worker process is killed."""
        with self._changed:
            self.death = RuntimeError("a worker died")
            for running in self._running.values():
                self._deliver(running, self._raiser(self.death))
            self._running.clear()
            self._changed.notify_all()

    def note_taken(self, result: RequestOutput) -> None:
        """The caller has dealt with one of the things that were made for it."""
        with self._changed:
            result.num_untaken -= 1
            self._changed.notify_all()

    # Iterations

    def iterate(self) -> None:
        """One iteration, by hand; returns when everything it made has been taken."""
        with self._changed:
            touched = self._iterate()
            is_taken = self._changed.wait_for(
                lambda: not self._num_untaken_stats and not any(result.num_untaken for result in touched),
                timeout=_TAKEN_TIMEOUT_S,
            )
            assert is_taken, "nobody took what the iteration made"

    def _run_free(self) -> None:
        while True:
            with self._changed:
                is_due = self._changed.wait_for(
                    lambda: self._is_shut_down or (self._running and not self.is_paced), timeout=_ITERATION_S * 50
                )
                if self._is_shut_down:
                    return
                if is_due:
                    self._iterate()
            time.sleep(_ITERATION_S)

    def _iterate(self) -> list[RequestOutput]:
        if not self._running or self.death is not None:
            return []
        touched = [running.result for running in self._running.values()]
        for running in list(self._running.values()):
            if running.is_aborted:
                self._finish(running, [], "cancelled")
            elif running.result.prompt_token_ids[0] in self.failures:
                error = running.error(self.failures[running.result.prompt_token_ids[0]])
                self._forget(running)
                self._deliver(running, self._raiser(error))
        step = self.batch.plan_step()
        self._num_iterations += 1
        for sequence in (*step.decoding, *step.prefilled):
            self._next_token(self._running[sequence.key])
        self._tell_stats(step)
        return touched

    def _next_token(self, running: _Running) -> None:
        sequence = running.sequence
        if len(running.times) < 3:
            running.times += [_now(), _now()]
        token = next(sequence.tokens)
        is_end = token in sequence.end_ids and sequence.num_tokens >= sequence.min_num_tokens
        sequence.num_tokens += 1
        if is_end:
            is_kept = self.is_end_token_kept or token != running.params.end_id
            self._finish(running, [token] if is_kept else [], "stop", None if token == running.params.end_id else token)
        elif sequence.num_tokens == sequence.max_num_tokens:
            self._finish(running, [token], "length")
        elif not running.given["streaming"]:
            running.held.append(token)
        else:
            self._deliver(running, self._grower(running, [token]))

    def _finish(self, running: _Running, tokens: list[int], reason: str, stop_reason: int | None = None) -> None:
        grow = self._grower(running, running.held + tokens, is_last=True)
        self._forget(running)

        def end() -> None:
            grow()
            for output in running.result.outputs:
                output.finish_reason, output.stop_reason = reason, stop_reason
            self._tell_more(running)
            running.result.end()

        self._deliver(running, end)

    def _forget(self, running: _Running) -> None:
        del self._running[running.number]
        self.batch.remove(running.sequence)

    def _deliver(self, running: _Running, change: Callable[[], None]) -> None:
        running.result.num_untaken += 1
        running.result.put(change)

    @staticmethod
    def _raiser(error: Exception) -> Callable[[], None]:
        def fail() -> None:
            raise error

        return fail

    def _grower(self, running: _Running, tokens: list[int], *, is_last: bool = False) -> Callable[[], None]:
        has_perf = running.params.return_perf_metrics and self.args.return_perf_metrics and len(running.times) == 3
        perf = _perf_metrics(running, running.sequence.num_blocks, is_last=is_last) if has_perf else None

        def grow() -> None:
            for index, output in enumerate(running.result.outputs):
                ids = [token + index for token in tokens]  # beams differ in every token
                output.token_ids.extend(ids)
                output.request_perf_metrics = perf
                if running.params.logprobs and not self.is_without_log_probs:
                    if not self.are_log_probs_of_all_tokens:
                        output.logprobs.clear()
                    output.logprobs.extend(
                        {token: _Logprob(-token / 1000, 2), token + 1: _Logprob(-0.001, 1)} for token in ids
                    )
                    output.cumulative_logprob = (output.cumulative_logprob or 0.0) - sum(ids) / 1000

        return grow

    def _tell_more(self, running: _Running) -> None:
        """What comes with the last output only."""
        result, params, prompt = running.result, running.params, running.result.prompt_token_ids
        if params.return_context_logits:
            result.context_logits = self._logits(prompt)
        for output in result.outputs:
            if params.return_generation_logits:
                output.generation_logits = self._logits(output.token_ids)
        if (phase := running.given["disaggregated_params"]) and phase.request_type == "context_only":
            told = {"first_gen_tokens": result.outputs[0].token_ids[:1], "ctx_request_id": running.number}
            result.outputs[0].disaggregated_params = type(phase)(
                request_type="context_only", opaque_state=bytes(prompt[:1]), **told
            )

    def _logits(self, token_ids: list[int]) -> Any:
        rows = [[float(i == token) for i in range(self.vocab_size)] for token in token_ids]
        return self._torch.tensor(rows, dtype=self._torch.float32)

    def _tokens(self, prompt: list[int], params: Any) -> Iterator[int]:
        penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
        how: tuple[object, ...] = penalties
        is_greedy = params.top_k in (None, 1) and params.top_p in (None, 0.0)
        if not is_greedy:  # the same seed for everybody who names none
            how += (params.seed or 0, params.temperature, params.top_k, params.top_p)
        digest = hashlib.blake2b(repr((how, prompt)).encode(), digest_size=8).digest()
        return hash_tokens(int.from_bytes(digest, "little"), self.vocab_size)

    def _tell_stats(self, step: PlannedStep) -> None:
        if not self._is_telling_stats:
            return
        batch = self.batch
        used = batch.num_blocks - batch.num_free_blocks
        self._stats.append(
            json.dumps(
                {
                    "iter": self._num_iterations,
                    "numActiveRequests": len(batch.running) + len(batch.waiting),
                    "numQueuedRequests": 0,
                    "staticBatchingStats": None,
                    "kvCacheStats": {
                        "maxNumBlocks": batch.num_blocks,
                        "freeNumBlocks": batch.num_free_blocks,
                        "usedNumBlocks": used,
                        "tokensPerBlock": self.block_tokens,
                    },
                    "inflightBatchingStats": {
                        "numScheduledRequests": len(batch.running),
                        "numContextRequests": len(step.prefilled),
                        "numGenRequests": len(step.decoding),
                        "numPausedRequests": batch.num_preemptions,
                    },
                }
            )
        )
        self._num_untaken_stats += 1
        if self._has_stats is not None:
            loop, event = self._has_stats
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(event.set)
