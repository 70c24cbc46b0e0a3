# SPDX-License-Identifier: Apache-2.0
"""Admission for any engine: a wrapper that gives it what fits the budget, in the order of the policy, and no more."""

import itertools
import math
from collections import Counter, deque

import msgspec

from ensemble_configs.admission_spec import AdmissionSpec, SloSpec
from ensemble_configs.errors import RequestError, ServingError, Unavailable
from serving.admission.budget import KvBudget
from serving.admission.forecast import FullForecast, LearnedForecast, OutputForecast
from serving.admission.step_times import StepTimes
from serving.admission.ticket import Ticket
from serving.admission.wait_estimate import WaitEstimate
from serving.admission.waiting_line import WaitingLine, late_error
from serving.engines.base import (
    AdmissionStats,
    Engine,
    EngineStats,
    FinishReason,
    GenerationRequest,
    PerfMetrics,
    SamplingParams,
    TokenChunk,
)
from serving.engines.clock import Clock
from serving.engines.request_limits import refuse_unservable
from serving.scheduling import Priority
from serving.speculation import joined_perf

# Of requests that were preempted and go on under another key: above all that callers' requests have, and below those of
# the rounds of `serving.speculating_engine`.
_FIRST_OTHER_KEY = 1 << 61
_STEPS_TO_FREE = 2  # that an engine may take, by the seam, until the blocks of a cancelled request are free
_TYPICAL = 0.5  # the quantile of the lengths that waits are computed from


class AdmittingEngine(Engine):
    """Requests wait here, not in the engine; what it has was promised room for all that it is expected to make.

    A request that makes more than the forecast said is given more room, block by block. Where there is none, one that
    runs is preempted: stopped, and started again later with its output behind its prompt. Each at most once, for then
    it is promised everything that it may make. A request that would not go on exactly where it was stopped is promised
    everything from the beginning.

    Args:
        tokens_per_step: that the engine may add to a sequence in one step, drafts included.
    """

    def __init__(
        self, engine: Engine, spec: AdmissionSpec, slo: SloSpec, clock: Clock, *, tokens_per_step: int = 1
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._slo = slo
        self._tokens_per_step = tokens_per_step
        self.info = msgspec.structs.replace(engine.info, is_admitting=True)
        shares = spec.budget.shares
        self.budget = KvBudget(
            num_blocks=max(1, int(spec.budget.kv_fraction * self.info.num_kv_blocks)),
            block_tokens=self.info.kv_block_tokens,
            max_num_seqs=self.info.max_num_seqs,
            max_tokens=spec.budget.max_tokens,
            shares={
                Priority.PREMIUM: shares.premium, Priority.STANDARD: shares.standard, Priority.BATCH: shares.batch,
            },
        )  # fmt: skip
        self._forecast: OutputForecast = (
            LearnedForecast(spec.budget.forecast_quantile) if spec.budget.forecast == "learned" else FullForecast()
        )
        self._typical = LearnedForecast(_TYPICAL)
        self._is_learning = isinstance(self._forecast, LearnedForecast)
        self._estimate = WaitEstimate(self.budget)
        ttft_s = math.inf if slo.ttft_ms is None else slo.ttft_ms / 1000
        self._line = WaitingLine(spec.queue, self._estimate, first_token_s=ttft_s)
        self._running: dict[int, Ticket] = {}  # by the engine's key
        self._keys: dict[int, int] = {}  # the engine's, of those that run, by the caller's
        self._limits: dict[int, float] = {}  # of those that run, when they must have ended
        self._other_keys = itertools.count(_FIRST_OTHER_KEY)
        self._refused: list[TokenChunk] = []  # by the engine, when it was given them
        self._short: list[int] = []  # the engine's keys of those that need more room soon
        self._leaving: deque[tuple[int, int]] = deque()  # cancelled: when their promises are free, and their keys
        self._num_steps = 0
        self._steps = StepTimes()
        self._prompt_tokens_per_step = 0.0
        self._pending_s = 0.0  # since tokens came the last time
        self._num_pending_prompt_tokens = 0
        self.num_preemptions = 0
        self._num_refused: Counter[str] = Counter()

    def add(self, request: GenerationRequest) -> None:
        """Let a request wait; the first step with room for it starts it.

        Raises:
            RequestError: it could never run.
            Unavailable: it is refused for now; its facts have `retry_after_ms`.
        """
        now_s = self._clock.now_s()
        refuse_unservable(request, self.info)
        self._refuse_never_fitting(request)
        scheduling = request.scheduling
        start_ms, end_ms = scheduling.queue_timeout_ms, scheduling.deadline_ms
        ticket = Ticket(
            request=request,
            arrival_s=now_s,
            priority=Priority(scheduling.priority),
            tenant=scheduling.tenant,
            num_queued_tokens=len(request.input_ids) + self._typical.expected_tokens(request),
            start_by_s=math.inf if start_ms is None else now_s + start_ms / 1000,
            end_by_s=math.inf if end_ms is None else now_s + end_ms / 1000,
            is_preemptible=self._is_learning and is_resumable(request),
        )
        try:
            self._line.join(ticket)
        except Unavailable as exc:
            self._count_refusal(ticket, exc)
            raise

    def cancel(self, key: int) -> None:
        """Stop a request, whether it waits or runs."""
        if key in self._line:
            self._line.leave(key)
        elif key in self._keys:
            self._stop(self._keys[key])

    def end(self, key: int) -> None:
        """Stop a request that has made what it was to make: it counts among those that came to their end."""
        if key in self._keys:
            self._learn(self._running[self._keys[key]], self._clock.now_s())
        self.cancel(key)

    def perf_of(self, key: int) -> PerfMetrics | None:
        """As the engine's, of one that runs."""
        return self._engine.perf_of(self._keys[key]) if key in self._keys else None

    def step(self) -> list[TokenChunk]:
        """End what is late, start what fits, run one iteration and account for what it made."""
        now_s = self._clock.now_s()
        self._num_steps += 1
        self._free_left()
        chunks = self._end_late(now_s)
        self._give_room()
        num_prompt_tokens = self._start(now_s)
        num_seqs = len(self._running)
        chunks += self._refused
        self._refused = []
        made = self._engine.step()
        after_s = self._clock.now_s()
        num_decoded = 0
        for chunk in made:
            if (ticket := self._running.get(chunk.key)) is not None:
                num_decoded += len(chunk.token_ids)
                self._note(chunk, ticket, after_s)
                chunks.append(chunk)
        if num_seqs:
            self._note_step(after_s - now_s, num_seqs, num_prompt_tokens, num_decoded)
        return chunks

    @property
    def has_work(self) -> bool:
        """Whether anything waits, runs or is cleaned up."""
        return bool(len(self._line) or self._leaving) or self._engine.has_work

    def stats(self) -> EngineStats:
        """The engine's, with what waits here."""
        stats = self._engine.stats()
        return msgspec.structs.replace(
            stats,
            num_waiting=stats.num_waiting + len(self._line),
            num_preemptions=(stats.num_preemptions or 0) + self.num_preemptions,
            admission=AdmissionStats(num_waiting=self._line.num_waiting, num_refused=dict(self._num_refused)),
        )

    def close(self) -> None:
        """As the engine's."""
        self._engine.close()

    def _refuse_never_fitting(self, request: GenerationRequest) -> None:
        num_tokens = self._most_tokens(request)
        if not self.budget.can_ever_fit(num_tokens):
            most = min(self.budget.max_tokens, self.budget.num_blocks * self.budget.block_tokens)
            raise RequestError(
                f"{len(request.input_ids)} prompt tokens + max_tokens {request.sampling.max_tokens} are more than the "
                f"{most} tokens that may be in flight; ask for less",
                field="max_tokens",
                value=request.sampling.max_tokens,
                max=most,
            )

    def _end_late(self, now_s: float) -> list[TokenChunk]:
        late = [(ticket.key, ticket) for ticket in self._line.take_late(now_s)]
        for engine_key in [key for key, limit_s in self._limits.items() if limit_s <= now_s]:
            ticket = self._running[engine_key]
            self._stop(engine_key)
            late.append((ticket.key, ticket))
        return [self._late_chunk(key, ticket, now_s) for key, ticket in late]

    def _late_chunk(self, key: int, ticket: Ticket, now_s: float) -> TokenChunk:
        error = late_error(ticket, now_s)
        self._count_refusal(ticket, error)
        return TokenChunk(key, [], error=str(error))

    def _count_refusal(self, ticket: Ticket, error: ServingError) -> None:
        self._num_refused[f"{ticket.priority.name.lower()} {error.facts['reason']}"] += 1

    def _start(self, now_s: float) -> int:
        """Start what fits; how many prompt tokens that is."""
        num_prompt_tokens = 0
        if self._engine.stats().num_waiting:  # it could not begin what it has: more would wait there, in its own order
            return 0
        while (found := self._line.first(now_s)) is not None:
            ticket, room = found
            num_tokens = self._first_promise(ticket)
            if not self._keeps_pace():
                break
            if not self.budget.fits(num_tokens, room):
                if self.budget.room_for(room).num_seats < 1 or not self._line.pass_over(ticket):
                    break
                continue
            ticket.expected_work = self._work_of(num_tokens, self._typical.expected_tokens(ticket.request))
            self._line.take(ticket)
            num_prompt_tokens += ticket.num_known_tokens
            self._begin(ticket, num_tokens, now_s)
        return num_prompt_tokens

    def _first_promise(self, ticket: Ticket) -> int:
        """Tokens that it is expected to have at its end; all that it may have, if it is not to be stopped."""
        request = ticket.request
        if not ticket.is_preemptible:
            return self._most_tokens(request)
        return self._promise_of(ticket, len(request.input_ids) + self._forecast.expected_tokens(request))

    def _promise_of(self, ticket: Ticket, num_tokens: int) -> int:
        """So many, with what the steps may add until more room is there, and no more than it can ever have."""
        return min(num_tokens + self._margin, self._most_tokens(ticket.request))

    @property
    def _margin(self) -> int:
        """A request that needs more may have to wait until one that was stopped for it has left."""
        return (1 + _STEPS_TO_FREE) * self._tokens_per_step

    def _most_tokens(self, request: GenerationRequest) -> int:
        """Of prompt and output in the KV cache; the last token is never fed back. Beams as if they shared nothing."""
        sampling = request.sampling
        max_tokens = 1 if sampling.is_context_only else sampling.max_tokens
        num_tokens = len(request.input_ids) + max_tokens - 1
        if sampling.beam_width == 1:
            return num_tokens
        return sampling.beam_width * self.budget.blocks_of(num_tokens) * self.budget.block_tokens

    def _work_of(self, num_promised_tokens: int, num_output_tokens: int) -> float:
        """What a request takes from the others: room in the KV cache, for so many steps."""
        return float(num_promised_tokens * max(1, num_output_tokens))

    def _note_step(self, seconds: float, num_seqs: int, num_prompt_tokens: int, num_decoded: int) -> None:
        self._pending_s += seconds
        self._num_pending_prompt_tokens += num_prompt_tokens
        if not num_decoded:  # prefill alone, or an engine that is asked more often than it steps
            return
        tokens_per_seq = num_decoded / num_seqs
        self._estimate.ends.note_step(self._pending_s, tokens_per_seq=tokens_per_seq)
        if self._slo.tpot_ms is not None:
            num_prompt = self._num_pending_prompt_tokens
            self._steps.note(self._pending_s / tokens_per_seq, num_seqs=num_seqs, num_prompt_tokens=num_prompt)
            self._prompt_tokens_per_step += 0.02 * (num_prompt - self._prompt_tokens_per_step)
        self._pending_s, self._num_pending_prompt_tokens = 0.0, 0

    def _keeps_pace(self) -> bool:
        """Whether all can have their tokens in time beside one more."""
        if self._slo.tpot_ms is None or not self._running:
            return True
        seconds = self._steps.seconds(len(self._running) + 1, prompt_tokens_per_step=self._prompt_tokens_per_step)
        return seconds is None or 1000 * seconds <= self._slo.tpot_ms

    def _begin(self, ticket: Ticket, num_tokens: int, now_s: float) -> None:
        engine_key = next(self._other_keys) if ticket.num_preemptions else ticket.key
        ticket.started_s = now_s
        self._running[engine_key] = ticket
        self._keys[ticket.key] = engine_key
        self.budget.promise(engine_key, num_tokens)
        if ticket.end_by_s < math.inf:
            self._limits[engine_key] = ticket.end_by_s
        self._estimate.note_start(ticket.priority)
        num_rest = self._typical.expected_tokens(ticket.request) - ticket.num_output_tokens
        self._estimate.ends.begin(engine_key, num_output_tokens=max(1, num_rest))
        try:
            self._engine.add(_continued(ticket, engine_key))
        except RequestError as exc:
            self.budget.free(self._leave(engine_key))
            self._refused.append(TokenChunk(ticket.key, [], error=str(exc)))

    def _note(self, chunk: TokenChunk, ticket: Ticket, now_s: float) -> None:
        engine_key = chunk.key
        chunk.key = ticket.key
        if not ticket.num_output_tokens and chunk.token_ids and ticket.started_s is not None:
            self._estimate.note_first_token(now_s - ticket.started_s)
        ticket.num_output_tokens += len(chunk.token_ids)
        if ticket.is_preemptible:
            ticket.output_ids += chunk.token_ids
        if chunk.finish_reason is not None or chunk.error is not None:
            if chunk.perf is not None and ticket.perf is not None:
                chunk.perf = joined_perf(ticket.perf, chunk.perf)
            if chunk.error is None and chunk.finish_reason is not FinishReason.CANCELLED:
                self._learn(ticket, now_s)
            self.budget.free(self._leave(engine_key))
        elif ticket.is_preemptible and self._needs_more(engine_key, ticket):
            self._short.append(engine_key)

    def _learn(self, ticket: Ticket, now_s: float) -> None:
        """From one that came to its end."""
        if ticket.started_s is not None:
            self._estimate.note_end(now_s - ticket.started_s)
        self._forecast.learn(ticket.request, ticket.num_output_tokens)
        self._typical.learn(ticket.request, ticket.num_output_tokens)

    def _needs_more(self, engine_key: int, ticket: Ticket) -> bool:
        return self._promise_of(ticket, ticket.num_known_tokens) > self.budget.promised_tokens(engine_key)

    def _give_room(self) -> None:
        """To those that make more than was expected, before the engine takes it.

        Who finds none has some of an earlier request's in two steps, for one is stopped; his margin is for those.
        """
        num_coming = sum(self.budget.promised_tokens(key) for _, key in self._leaving)
        short, self._short = self._short, []
        for engine_key in short:
            ticket = self._running.get(engine_key)
            if ticket is None:  # it has left, or was preempted for another one
                continue
            num_blocks = self.budget.blocks_of(ticket.num_known_tokens + self._margin)
            num_tokens = self._promise_of(ticket, num_blocks * self.budget.block_tokens - self._margin)
            if self.budget.grow(engine_key, num_tokens):
                continue
            num_missing = num_tokens - self.budget.promised_tokens(engine_key)
            while num_coming < num_missing and engine_key in self._running:
                victim = self._victim(ticket)
                num_coming += self.budget.promised_tokens(victim)
                self._preempt(victim)
            if engine_key in self._running:
                num_coming -= num_missing
                self._short.append(engine_key)

    def _victim(self, ticket: Ticket) -> int:
        """The youngest of the lowest class; never one above the class of `ticket`, which can be one itself."""
        keys = [
            key
            for key, running in self._running.items()
            if running.is_preemptible and running.priority >= ticket.priority
        ]
        return max(keys, key=lambda key: (self._running[key].priority, self._running[key].started_s or 0.0))

    def _preempt(self, engine_key: int) -> None:
        ticket = self._running[engine_key]
        ticket.perf = self._engine.perf_of(engine_key)
        self._stop(engine_key)
        ticket.num_preemptions += 1
        ticket.is_preemptible = False
        self.num_preemptions += 1
        self._line.rejoin(ticket)

    def _stop(self, engine_key: int) -> None:
        """Its promise stays until its blocks are free."""
        self._engine.cancel(engine_key)
        self._leaving.append((self._num_steps + _STEPS_TO_FREE, self._leave(engine_key)))

    def _free_left(self) -> None:
        while self._leaving and (self._leaving[0][0] <= self._num_steps or not self._engine.has_work):
            self.budget.free(self._leaving.popleft()[1])

    def _leave(self, engine_key: int) -> int:
        """It runs no longer; the caller frees the promise of the key that is returned."""
        ticket = self._running.pop(engine_key)
        del self._keys[ticket.key]
        self._limits.pop(engine_key, None)
        self._estimate.ends.end(engine_key)
        self._line.settle(ticket, self._work_of(self.budget.promised_tokens(engine_key), ticket.num_output_tokens))
        return engine_key


def is_resumable(request: GenerationRequest) -> bool:
    """Whether it goes on exactly where it was stopped, when its output is put behind its prompt.

    What looks at the output alone (penalties, guides, seeds, the least number of tokens) does not, and neither does
    what is told once or at the end.
    """
    sampling = request.sampling
    asked = {name for name in sampling.__struct_fields__ if getattr(sampling, name) != _DEFAULTS.get(name)}
    return asked <= _RESUMABLE and not (sampling.seed is not None and not sampling.is_greedy)


_RESUMABLE = frozenset(
    {"max_tokens", "temperature", "top_k", "top_p", "seed", "end_id", "return_log_probs", "embedding_bias"}
)


def _continued(ticket: Ticket, engine_key: int) -> GenerationRequest:
    """What the engine is given: the request, or what is left of it."""
    request = ticket.request
    if not ticket.num_preemptions:
        return request
    num_output = len(ticket.output_ids)
    sampling = msgspec.structs.replace(request.sampling, max_tokens=request.sampling.max_tokens - num_output)
    return msgspec.structs.replace(
        request,
        key=engine_key,
        input_ids=request.input_ids + ticket.output_ids,
        sampling=sampling,
        num_output_ids=num_output,
    )


_DEFAULTS = {
    field.name: field.default
    for field in msgspec.structs.fields(SamplingParams)
    if field.default is not msgspec.NODEFAULT
}
