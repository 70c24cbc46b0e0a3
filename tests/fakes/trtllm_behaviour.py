# SPDX-License-Identifier: Apache-2.0
"""The fake `tensorrt_llm` when it is called: the executor behind one `LLM`.

It imports nothing of the project: it is written from upstream's source alone, which `trtllm_switches` names behaviour
by behaviour. The signatures are generated (`trtllm_generator`). Free-running as the real one, in a thread; a paced
executor iterates when the test says so, and returns when everything it made has been taken.
"""

import functools
import importlib
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar

import trtllm_iteration_stats
from trtllm_adapter_loader import AdapterLoader
from trtllm_adapters import Adapters
from trtllm_checks import Unlisted, Unstated, check_args, check_instance, check_request, config_of, send
from trtllm_iteration_stats import IterationStats
from trtllm_kv_events import KvEvents
from trtllm_loader import window_of_one_sequence, window_upper_bound
from trtllm_responses import Running
from trtllm_results import CompletionOutput, RequestOutput, now
from trtllm_scheduler import Scheduler, Sequence
from trtllm_switches import Behaviour, behaviours_of, is_on
from trtllm_tensors import tokens_after

# What the generated package takes from here.
__all__ = ["CompletionOutput", "RequestOutput", "Unlisted", "Unstated", "check_args", "check_instance", "check_request"]

BLOCKS_OF_THE_GPU = 1024  # what the fake's memory fraction comes to
DEFAULT_MAX_BATCH_SIZE, DEFAULT_MAX_NUM_TOKENS = 2048, 8192
_ITERATION_S = 0.001
_TAKEN_TIMEOUT_S = 20.0
_NO_LOGITS = "Only speculative decoding with external draft tokens supports returning generation logits"
_DRAFTS = "max_draft_len", "num_nextn_predict_layers", "max_ngram_size"


class Executor(AdapterLoader):
    """The batch behind one `LLM`."""

    created: ClassVar[list["Executor"]] = []  # the newest last, for tests

    def __init__(self, args: Any, *, backend: str, version: str = "1.2.1") -> None:
        config = self._config = config_of(args)
        super().__init__(args, backend=backend, torch=importlib.import_module("torch"))
        self._grammar = importlib.import_module("xgrammar").Grammar
        self._behaviours = behaviours_of(backend, version)
        self._refuse_overlapped_beams()
        build = config.get("build_config", {})
        self.vocab_size = config.get("vocab_size") or config["pretrained_config"]["vocab_size"]
        self.is_gathering_context = backend == "pytorch" or build.get("gather_context_logits", False)
        kv = args.kv_cache_config
        self.block_tokens = build.get("plugin_config", {}).get("tokens_per_block", kv.tokens_per_block)
        max_batch_size = args.max_batch_size or build.get("max_batch_size", DEFAULT_MAX_BATCH_SIZE)
        self.batch = Scheduler(
            max_batch_size=max_batch_size,
            max_active=max_batch_size * args.pipeline_parallel_size,
            max_num_tokens=args.max_num_tokens or DEFAULT_MAX_NUM_TOKENS,
            num_blocks=min(BLOCKS_OF_THE_GPU, (kv.max_tokens or 10**9) // self.block_tokens),
            block_tokens=self.block_tokens,
        )
        self.batch.is_chunking = bool(args.enable_chunked_prefill)
        policy = args.scheduler_config.capacity_scheduler_policy
        self.batch.is_evicting = policy == "MAX_UTILIZATION" or not self.has(Behaviour.NOTHING_IS_EVICTED)
        self.batch.is_of_one_width = self.has(Behaviour.BEAM_WIDTHS_TAKE_TURNS)
        self.max_seq_len = self._longest_sequence(build)
        self.kv_events = KvEvents(
            max_size=getattr(kv, "event_buffer_max_size", 0) if kv.enable_block_reuse else 0,
            num_blocks=self.batch.num_blocks,
            block_tokens=self.block_tokens,
            window=self.max_seq_len,
        )
        self.adapters = Adapters(args, config, backend=backend, has=self.has)
        self.calls: list[dict[str, Any]] = []  # what generate_async was given
        self.is_end_token_kept = backend == "pytorch"
        self.failures: dict[int, str] = {}  # by first prompt token: requests that fail alone
        self.deaf: set[int] = set()  # by first prompt token: requests whose cancel upstream loses
        self.death: Exception | None = None
        self._is_paced = False
        self.step_ranks: Callable[[], None] = lambda: None  # of `trtllm_ranks`; blocks while a rank does not answer
        self._is_telling_stats = backend == "tensorrt" or args.enable_iter_perf_stats
        self._running: dict[int, Running] = {}
        self._numbers = itertools.count(1)
        self._num_iterations = 0
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        max_rows = args.iter_stats_max_iterations or getattr(args, "max_stats_len", 1000)
        self.stats = IterationStats(self._changed, self.has, max_rows)
        self._is_shut_down = False
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._run_free, self._send_stats_free)]
        Executor.created.append(self)
        for thread in self._threads:
            thread.start()

    @property
    def is_paced(self) -> bool:
        """Return whether iterations run by `iterate` alone."""
        return self._is_paced

    @is_paced.setter
    def is_paced(self, is_paced: bool) -> None:
        with self._changed:
            self._is_paced = is_paced
            self._changed.notify_all()

    def has(self, behaviour: Behaviour) -> bool:
        """Return whether this backend and version behave so, and no test has switched it off."""
        return behaviour in self._behaviours and is_on(behaviour)

    def _refuse_overlapped_beams(self) -> None:
        args = self.args
        has_overlap = not getattr(args, "disable_overlap_scheduler", True)
        if self.has(Behaviour.BEAMS_NEED_NO_OVERLAP) and (args.max_beam_width or 1) > 1 and has_overlap:
            raise ValueError("beam search needs disable_overlap_scheduler")

    def _longest_sequence(self, build: dict[str, Any]) -> int:
        """Return what is asked for, or less with a warning if one whole sequence does not fit the cache.

        A compiled engine's own limits override what the LLM is made with (TrtLlmArgs,
        validate_build_config_with_runtime_params).
        """
        wanted = int(build.get("max_seq_len") or self.args.max_seq_len or 10**9)
        if not self.has(Behaviour.SEQUENCES_ARE_CLAMPED_TO_THE_CACHE):
            return wanted
        sizes = {"block_tokens": self.block_tokens, "num_blocks": self.batch.num_blocks}
        if self.backend == "pytorch":
            return window_upper_bound(wanted, num_beams=self.args.max_beam_width or 1, **sizes)
        longest_prompt = wanted - 1 if self.batch.is_chunking else min(wanted - 1, self.batch.max_num_tokens)
        return window_of_one_sequence(longest_prompt, wanted, num_beams=build.get("max_beam_width", 1), **sizes)

    # The LLM's side

    def submit(self, given: dict[str, Any], output_class: Any, completion_class: Any, error: type) -> RequestOutput:
        """Queue a request."""
        params, prompt = given["sampling_params"], given["inputs"]["prompt_token_ids"]
        if params is None or (params.end_id is None and self.args.skip_tokenizer_init):
            raise ValueError("without a tokenizer sampling_params.end_id must be set")
        if params.n != 1 and not params.use_beam_search:
            raise NotImplementedError("the fake samples one sequence of a request")
        if self.has(Behaviour.ARGUMENTS_ARE_CHECKED):
            check_request(self.args, self._config, given, backend=self.backend)
        if self.has(Behaviour.REQUESTS_ARE_PICKLED):
            send(given)
        with self._changed:
            if self.death is not None:
                raise RuntimeError("the executor is shut down")
            self.calls.append(given)
            self.stats.begin()
            number = next(self._numbers)
            num_beams = params.n if params.use_beam_search else 1
            completions = [completion_class() for _ in range(num_beams)]
            result: RequestOutput = output_class(number, prompt, self, completions)
            sequence = Sequence(
                number=number,
                num_prompt_tokens=len(prompt),
                max_tokens=max(1, min(params.max_tokens, self.max_seq_len - len(prompt))),  # shortened with a warning
                num_beams=num_beams,
            )
            running = self._running[number] = Running(result, sequence, error, given)
            has_samplers = self.backend == "tensorrt" or hasattr(self.args, "sampler_type")
            unseeded = 0 if has_samplers else len(self.calls)
            running.make_tokens = functools.partial(tokens_after, prompt, params, self.vocab_size, unseeded=unseeded)
            running.tokens = running.make_tokens()
            if not params.ignore_eos:
                running.ends = {params.end_id, *(params.stop_token_ids or ())} - {None, -1}
            if not self._has_adapter(running):
                pass
            elif (refusal := self._refusal_of(running, num_beams)) is not None:
                self._fail(running, error(refusal))
            else:
                self.batch.add(sequence)
            self._changed.notify_all()
        return result

    def _refusal_of(self, running: Running, num_beams: int) -> str | None:
        """Return what the worker answers instead of a first token; None: it takes the request."""
        params, widest = running.params, self.args.max_beam_width or 1
        if self.has(Behaviour.ONLY_THE_FULL_BEAM_WIDTH) and num_beams != widest:
            return f"Request beam width {num_beams} is not equal to max_beam_width {widest}. This is not supported!"
        if num_beams > widest:
            return f"beam width {num_beams} exceeds max_beam_width {widest}"
        if (too_long := self._why_too_long(running)) is not None:
            return too_long
        if params.return_context_logits and not self.is_gathering_context:
            return "context logits need an engine built with gather_context_logits"
        return None

    def _why_too_long(self, running: Running) -> str | None:
        num_tokens = len(running.result.prompt_token_ids)
        if num_tokens > self.max_seq_len:
            return f"prompt length exceeds max_seq_len {self.max_seq_len}"
        if not self.batch.is_chunking and num_tokens > self.batch.max_num_tokens:
            return f"prompt length ({num_tokens}) exceeds maximum input length ({self.batch.max_num_tokens})"
        if self._is_cut_by_a_pause(running):
            return "Request sequence length is potentially greater than max input length"
        return None

    def _is_cut_by_a_pause(self, running: Running) -> bool:
        """Return whether a stream, paused at its last token, could be longer than the longest prompt."""
        if not self.has(Behaviour.LONG_STREAMS_THAT_MAY_PAUSE_ARE_REFUSED) or self.batch.is_chunking:
            return False
        if self.args.scheduler_config.capacity_scheduler_policy == "GUARANTEED_NO_EVICT":
            return False
        longest_prompt = min(self.max_seq_len - 1, self.batch.max_num_tokens)
        sequence = running.sequence
        return running.given["streaming"] and sequence.num_prompt_tokens + sequence.max_tokens - 1 > longest_prompt

    def abort(self, result: RequestOutput) -> None:
        """Mark a request; an iteration ends it."""
        with self._changed:
            running = self._running.get(result.request_id)
            if running is not None and result.prompt_token_ids[0] not in self.deaf:
                running.is_aborted = True
            self._changed.notify_all()

    def get_stats(self, timeout: float | None) -> list[dict[str, Any]]:
        raise NotImplementedError("the fake is asynchronous")

    def get_stats_async(self, timeout: float | None) -> AsyncIterator[dict[str, Any]]:
        """Return the rows that are told, until nothing comes for `timeout` seconds."""
        return self.stats.read(timeout)

    def shutdown(self) -> None:
        """End the threads."""
        with self._changed:
            self._is_shut_down = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def die(self, reason: str = "a worker died") -> None:
        """Do what happens when a worker process is killed."""
        with self._changed:
            self.death = RuntimeError(reason)
            for running in list(self._running.values()):
                self._fail(running, self.death)
            self._changed.notify_all()

    def note_taken(self, result: RequestOutput) -> None:
        """Note that the caller has dealt with one of the things that were made for it."""
        with self._changed:
            result.num_untaken -= 1
            self._changed.notify_all()

    # Iterations

    def iterate(self) -> None:
        """Run one iteration by hand; return when everything that it made has been taken."""
        with self._changed:
            touched = self._iterate()
            self.stats.send()
            is_taken = self._changed.wait_for(
                lambda: self.stats.are_taken and not any(result.num_untaken for result in touched),
                timeout=_TAKEN_TIMEOUT_S,
            )
            assert is_taken, "nobody took what the iteration made"

    def tick(self) -> None:
        """Run one iteration by hand, without waiting for its results to be taken."""
        with self._changed:
            self._iterate()
            self.stats.send()

    def _run_free(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_shut_down or (self._running and not self.is_paced))
                if self._is_shut_down:
                    return
                self._iterate()
            time.sleep(_ITERATION_S)
            self.step_ranks()

    def _send_stats_free(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_shut_down or (self.stats.are_waiting and not self.is_paced))
                if self._is_shut_down:
                    return
            if self.has(Behaviour.STATS_COME_IN_BATCHES):
                time.sleep(trtllm_iteration_stats.PAUSE_S)
            with self._changed:
                self.stats.send()

    def _iterate(self) -> list[RequestOutput]:
        if not self._running or self.death is not None:
            return []
        touched = [running.result for running in self._running.values()]
        is_engine = self.backend == "tensorrt"
        if is_engine:  # its loop ends cancelled requests first, and then takes from the queue
            self._end_cancelled()
        self.batch.fetch()
        if not is_engine:
            self._end_cancelled()
        for running in list(self._running.values()):
            if (message := self.failures.get(running.result.prompt_token_ids[0])) is not None:
                self._fail(running, running.error(message))
        if self.death is not None:
            return touched
        if is_engine:
            self._begin_adapters(self.batch.active)
        plan = self.batch.plan()
        if not is_engine:
            self._begin_adapters(self.batch.scheduled)
        if self.death is not None:
            return touched
        self._num_iterations += 1
        for sequence in plan.producing:
            if sequence.number in self._running:  # unless this iteration has killed everybody
                self._next_tokens(self._running[sequence.number])
        self.kv_events.flush()
        self._tell_stats(len(plan.prefilled), len(plan.decoding))
        self._changed.notify_all()
        return touched

    def _end_cancelled(self) -> None:
        for running in list(self._running.values()):
            if not running.is_aborted:
                continue
            if running.sequence in self.batch.active:
                self._end_active(running)
            elif self.has(Behaviour.CANCEL_DROPS_WAITING):
                self._forget(running)
            elif not self.has(Behaviour.CANCEL_WAITS_FOR_SCHEDULE):
                self._finish(running, [], "cancelled")

    def _end_active(self, running: Running) -> None:
        is_streamed = running.given["streaming"] and running.params.logprobs
        if is_streamed and self.has(Behaviour.ABORT_OF_STREAMED_LOG_PROBS_CRASHES):
            self.die("the executor crashed: a cancelled request that streams log probabilities")
            return
        self._finish(running, [], "cancelled")

    def _next_tokens(self, running: Running) -> None:
        if len(running.times) < 3:
            running.times += [now(), now()]
        self._crash_of(running)
        if running.number not in self._running:
            return
        made: list[int] = []
        for _ in range(self._num_accepted(running)):
            if not running.sequence.num_made:
                self.kv_events.store(running.result.prompt_token_ids, has_partial=False)
            token = next(running.tokens)
            running.sequence.num_made += 1
            is_early = running.sequence.num_made < (running.params.min_tokens or 1)
            if token in running.ends and not is_early:
                is_kept = self.is_end_token_kept or token != running.params.end_id
                stop_reason = None if token == running.params.end_id else token
                self._store_all(running)
                self._finish(running, [*made, token] if is_kept else made, "stop", stop_reason)
                return
            made.append(token)
            if running.sequence.num_made == running.sequence.max_tokens:
                self._store_all(running)
                self._finish(running, made, "length")
                return
        if not running.given["streaming"]:
            running.held += made
        else:
            self._deliver(running, self._grower(running, made))

    def _store_all(self, running: Running) -> None:
        """Keep the blocks of a sequence that ends."""
        output = list(itertools.islice(running.make_tokens(), running.sequence.num_made))
        self.kv_events.store(running.result.prompt_token_ids + output, has_partial=True)

    def _num_accepted(self, running: Running) -> int:
        """Return the tokens of this step: one, or one more for each draft that the fake takes as accepted."""
        speculation = self.args.speculative_config
        if speculation is None or not running.sequence.num_made or not self.has(Behaviour.SEVERAL_TOKENS_AT_ONCE):
            return 1
        num_drafts = next((value for name in _DRAFTS if (value := getattr(speculation, name, None))), 1)
        return 1 + self._num_iterations % (num_drafts + 1)

    def _crash_of(self, running: Running) -> None:
        """End the executor, if this request is one that it does not survive."""
        params, speculation = running.params, self.args.speculative_config
        if self.has(Behaviour.SPECULATION_DIES_OF_LOG_PROBS) and _samples_in_the_model(speculation):
            for name in ("return_context_logits", "return_generation_logits", "logprobs"):
                if getattr(params, name):
                    self._fail_all(f"{name} not implemented for the speculative sampler")
        has_logits = (params.logprobs or params.return_generation_logits) and running.sequence.num_made
        if self.has(Behaviour.LOGITS_BESIDE_DRAFTS_FAIL_EVERYBODY) and speculation is not None and has_logits:
            self._fail_active(_NO_LOGITS)
        if (
            self.has(Behaviour.BEAMS_BESIDE_DRAFTS_FAIL_EVERYBODY)
            and speculation is not None
            and params.use_beam_search
        ):
            self._fail_active("Assertion failed: beamWidth == 1")
        if self.has(Behaviour.BAD_GUIDES_FAIL_EVERYBODY) and params.guided_decoding and not running.sequence.num_made:
            try:
                self._compile(params.guided_decoding)
            except RuntimeError as exc:
                self._fail_active(str(exc))
        has_stop_tokens = bool(params.stop_token_ids) and params.use_beam_search
        if self.has(Behaviour.BEAMS_WITH_STOP_TOKENS_CRASH) and has_stop_tokens:
            self.die("the executor crashed: beam search with stop_token_ids")

    def _compile(self, guide: Any) -> None:
        for name, parse in (("json", "from_json_schema"), ("regex", "from_regex"), ("grammar", "from_ebnf")):
            if (text := getattr(guide, name, None)) is not None:
                getattr(self._grammar, parse)(text)

    def _fail_all(self, message: str) -> None:
        """Answer every request with an error, as `_handle_errors` does, and take no more requests."""
        for running in list(self._running.values()):
            self._fail(running, running.error(message))
        self.death = RuntimeError(message)

    def _fail_active(self, message: str) -> None:
        """Answer active requests with an error, as `terminateActiveRequests` does, and go on with the others."""
        for running in list(self._running.values()):
            if running.sequence in self.batch.active:
                self._fail(running, running.error(f"Encountered an error in forwardAsync function: {message}"))

    def _fail(self, running: Running, error: Exception) -> None:
        self._forget(running)
        self._deliver(running, self._raiser(error))

    def _forget(self, running: Running) -> None:
        del self._running[running.number]
        if running.adapter is not None:
            self.adapters.end(running.adapter, running.number)
        sequence = running.sequence
        if sequence in self.batch.active or sequence in self.batch.waiting:
            is_stranding = (
                running.is_aborted
                and running.is_context_only
                and self.has(Behaviour.ABORT_OF_CONTEXT_ONLY_STRANDS_BLOCKS)
            )
            self.batch.remove(sequence, is_stranding=is_stranding)

    def _tell_stats(self, num_prefilled: int, num_decoding: int) -> None:
        if not self._is_telling_stats:
            return
        batch = self.batch
        self.stats.tell(
            {
                "iter": self._num_iterations,
                "numActiveRequests": len(batch.active),
                "numQueuedRequests": len(batch.waiting),
                "staticBatchingStats": None,
                "kvCacheStats": {
                    "maxNumBlocks": batch.num_blocks,
                    "freeNumBlocks": batch.num_free_blocks,
                    "usedNumBlocks": batch.num_blocks - batch.num_free_blocks,
                    "tokensPerBlock": self.block_tokens,
                },
                "inflightBatchingStats": {
                    "numScheduledRequests": len(batch.scheduled),
                    "numContextRequests": num_prefilled,
                    "numGenRequests": num_decoding,
                    "numPausedRequests": batch.num_paused,
                },
            }
        )


def _samples_in_the_model(speculation: Any) -> bool:
    """Return whether drafts and target are one model, whose sampler knows tokens alone: MTP, or EAGLE-3 as one."""
    name = type(speculation).__name__
    return name == "MTPDecodingConfig" or (name == "EagleDecodingConfig" and speculation.eagle3_one_model)
