# SPDX-License-Identifier: Apache-2.0
"""What runs in an engine, and the room that each was promised: from a start to an end, or to a preemption."""

import itertools
import math
from collections import deque
from collections.abc import Callable

import msgspec

from ensemble_configs.spec.admission_spec import BudgetSpec
from serving.admission.batch_prefill import BatchPrefill
from serving.admission.budget import KvBudget
from serving.admission.joined_perf import joined_perf
from serving.admission.offered_load import OfferedLoad
from serving.admission.output_length import FullForecast, LearnedForecast, OutputForecast
from serving.admission.queued_request import Ticket
from serving.admission.resumption import is_resumable, resumed
from serving.admission.tenant_reserve import TenantReserve
from serving.admission.wait_estimate import WaitEstimate
from serving.engines.seam.base import Engine, FinishReason, GenerationRequest, PerfMetrics, TokenChunk
from serving.engines.seam.scheduling import Priority
from serving.shared_budget.shared_room import SharedRoom
from trireme.base.errors import RequestError

# Of requests that were preempted and go on under another key: above all that callers' requests have.
_FIRST_OTHER_KEY = 1 << 61
_STEPS_TO_FREE = 2  # that an engine may take, by the seam, until the blocks of a stopped request are free
_TYPICAL = 0.5  # the quantile of the lengths that waits are computed from


class InFlight:
    """The requests that were given to an engine, each with a promise of all the room that it is expected to take.

    A request that makes more than the forecast said is given more room, block by block. Where there is none, one that
    runs is preempted: stopped, and started again later with its output behind its prompt. Each at most once, for then
    it is promised everything that it may make. A request that would not go on exactly where it was stopped is promised
    everything from the beginning.

    Args:
        reserve: what a tenant leaves free for the others.
        prefill: is told what begins and ends.
        tokens_per_step: that the engine may add to a sequence in one step, drafts included.
        settle: called with each that runs no longer and the work that it took in truth.
    """

    def __init__(
        self,
        engine: Engine,
        spec: BudgetSpec,
        shared: SharedRoom,
        *,
        reserve: TenantReserve,
        prefill: BatchPrefill,
        tokens_per_step: int,
        settle: Callable[[Ticket, float], None],
    ) -> None:
        self._engine = engine
        self._settle = settle
        self._shared = shared
        info = engine.info
        self.budget = KvBudget(
            num_blocks=max(1, int(spec.kv_fraction * info.num_kv_blocks)),
            block_tokens=info.kv_block_tokens,
            max_num_seqs=info.max_num_seqs,
            max_tokens=spec.max_tokens,
            shares={priority: getattr(spec.shares, priority.name.lower()) for priority in Priority},
            on_free=shared.free,
            reserve=reserve,
        )
        self._prefill = prefill
        self.estimate = WaitEstimate(self.budget, prefill)
        self._is_learning = spec.forecast == "learned"
        self._forecast: OutputForecast = (
            LearnedForecast(spec.forecast_quantile) if self._is_learning else FullForecast()
        )
        self._typical = LearnedForecast(_TYPICAL)
        self._tickets: dict[int, Ticket] = {}  # by the engine's key
        self._keys: dict[int, int] = {}  # the engine's, by the caller's
        self._limits: dict[int, float] = {}  # when they must have ended, by the engine's key
        self._other_keys = itertools.count(_FIRST_OTHER_KEY)
        self._short: list[int] = []  # the engine's keys of those that need more room soon
        self._leaving: deque[tuple[int, int]] = deque()  # stopped: when their promises are free, and their keys
        # A request that needs more may have to wait until one that was stopped for it has left.
        self._margin = (1 + _STEPS_TO_FREE) * tokens_per_step
        self._num_steps = 0
        self.num_preemptions = 0

    def __len__(self) -> int:
        """Requests that run."""
        return len(self._tickets)

    def __contains__(self, key: int) -> bool:
        """By the caller's key."""
        return key in self._keys

    @property
    def is_leaving(self) -> bool:
        """Whether a step is needed for promises to become free."""
        return bool(self._leaving)

    def refuse_never_fitting(self, request: GenerationRequest) -> None:
        """Raises: RequestError: it does not fit the budget though it were alone."""
        if not self.budget.can_ever_fit(self._most_tokens(request)):
            most = min(self.budget.max_tokens, self.budget.num_blocks * self.budget.block_tokens)
            raise RequestError(
                f"{len(request.input_ids)} prompt tokens + max_tokens {request.sampling.max_tokens} are more than the "
                f"{most} tokens that may be in flight; ask for less",
                field="max_tokens",
                value=request.sampling.max_tokens,
                max=most,
            )
        self._shared.refuse_never_fitting(self._most_tokens(request))

    def typical_tokens(self, request: GenerationRequest) -> int:
        """Of output, by what its tenant's requests made."""
        return self._typical.expected_tokens(request)

    def note_offered(self, request: GenerationRequest, load: OfferedLoad, now_s: float) -> None:
        """Of a request that arrives, by what its tenant's requests made; nothing while no pace is known."""
        num_output = self._typical.expected_tokens(request)
        stay_s = self.estimate.first_token_s + (num_output - 1) * self.estimate.ends.token_s
        load.note(now_s, stay_s=stay_s, num_tokens=len(request.input_ids) + num_output)

    def may_preempt(self, request: GenerationRequest) -> bool:
        """Whether it may be promised less than it can take, for it can be stopped."""
        return self._is_learning and is_resumable(request)

    def first_promise(self, ticket: Ticket) -> int:
        """Tokens that it is expected to have at its end; all that it may have, if it is not to be stopped."""
        request = ticket.request
        if not ticket.is_preemptible:
            return self._most_tokens(request)
        return self._promise_of(ticket, len(request.input_ids) + self._forecast.expected_tokens(request))

    def work_of(self, ticket: Ticket, num_promised_tokens: int) -> float:
        """What a request is expected to take from the others: room in the KV cache, for so many steps."""
        return float(num_promised_tokens * self._num_rest(ticket))

    def take_shared(self, ticket: Ticket, *, num_waiting: int) -> bool:
        """Of what the engine shares with others, all that a request may need; False: it cannot begin now."""
        ticket.engine_key = next(self._other_keys) if ticket.num_preemptions else ticket.key
        return self._shared.take(ticket.engine_key, self._most_tokens(ticket.request), num_waiting=num_waiting)

    def begin(self, ticket: Ticket, num_tokens: int, now_s: float) -> None:
        """Promise so many tokens to a request that has its shared room, and give it to the engine.

        Raises:
            RequestError: the engine does not take it; nothing is promised to it any more.
        """
        engine_key = ticket.engine_key
        ticket.started_s = now_s
        self._tickets[engine_key] = ticket
        self._keys[ticket.key] = engine_key
        self.budget.promise(engine_key, num_tokens, ticket.tenant)
        if ticket.end_by_s < math.inf:
            self._limits[engine_key] = ticket.end_by_s
        self._prefill.begin(engine_key, ticket.priority, ticket.num_known_tokens)
        self.estimate.note_start(ticket.priority, now_s)
        self.estimate.ends.begin(engine_key, num_output_tokens=self._num_rest(ticket))
        try:
            self._engine.add(resumed(ticket, engine_key) if ticket.num_preemptions else ticket.request)
        except RequestError:
            self._leave(engine_key)
            self.budget.free(engine_key)
            raise

    def note(self, chunk: TokenChunk, now_s: float) -> bool:
        """Account for what the engine has made, and give the chunk the caller's key; False: nobody waits for it."""
        engine_key = chunk.key
        ticket = self._tickets.get(engine_key)
        if ticket is None:
            return False
        chunk.key = ticket.key
        self._prefill.note_token(engine_key)
        if not ticket.num_output_tokens and chunk.token_ids and ticket.started_s is not None:
            self.estimate.note_first_token(now_s - ticket.started_s)
        ticket.num_output_tokens += len(chunk.token_ids)
        if ticket.is_preemptible:
            ticket.output_ids += chunk.token_ids
        if chunk.finish_reason is not None or chunk.error is not None:
            if chunk.perf is not None and ticket.num_preemptions:
                perf = joined_perf(ticket.perf, chunk.perf)
                num_preemptions = (perf.num_preemptions or 0) + ticket.num_preemptions
                chunk.perf = msgspec.structs.replace(perf, num_preemptions=num_preemptions)
            if chunk.error is None and chunk.finish_reason is not FinishReason.CANCELLED:
                self._learn(ticket, now_s)
            self._leave(engine_key)
            if chunk.finish_reason is FinishReason.STOP_STRING:
                self._leaving.append((self._num_steps + _STEPS_TO_FREE, engine_key))  # the engine was told just now
            else:
                self.budget.free(engine_key)
        elif ticket.is_preemptible and self._needs_more(engine_key, ticket):
            self._short.append(engine_key)
        return True

    def stop(self, key: int) -> Ticket:
        """By the caller's key; its promise stays until its blocks are free."""
        return self._stop(self._keys[key])

    def stop_late(self, now_s: float) -> list[Ticket]:
        """Those that should have ended by now."""
        return [self._stop(key) for key in [key for key, limit_s in self._limits.items() if limit_s <= now_s]]

    def perf_of(self, key: int) -> PerfMetrics | None:
        """As the engine's, with what was before a preemption."""
        engine_key = self._keys[key]
        perf, earlier = self._engine.perf_of(engine_key), self._tickets[engine_key].perf
        return perf if perf is None or earlier is None else joined_perf(earlier, perf)

    def free_left(self) -> None:
        """At the beginning of a step: the promises of those that have left it for long enough."""
        self._num_steps += 1
        still: deque[tuple[int, int]] = deque()
        while self._leaving and (self._leaving[0][0] <= self._num_steps or not self._engine.has_work):
            leaving = self._leaving.popleft()
            if self._engine.is_ending(leaving[1]):  # an engine that batches by itself has not confirmed it
                still.append(leaving)
            else:
                self.budget.free(leaving[1])
        self._leaving.extendleft(reversed(still))

    def give_room(self) -> list[Ticket]:
        """To those that make more than was expected, before the engine takes it; who was preempted for them.

        Who finds none has another one's in two steps, for that is stopped now; his margin is for those.
        """
        num_coming = sum(self.budget.promised_tokens(key) for _, key in self._leaving)
        preempted: list[Ticket] = []
        short, self._short = self._short, []
        for engine_key in short:
            ticket = self._tickets.get(engine_key)
            if ticket is None:  # it has left, or was preempted for another one
                continue
            num_blocks = self.budget.blocks_of(ticket.num_known_tokens + self._margin)
            num_tokens = self._promise_of(ticket, num_blocks * self.budget.block_tokens - self._margin)
            if self.budget.grow(engine_key, num_tokens):
                continue
            num_missing = num_tokens - self.budget.promised_tokens(engine_key)
            while num_coming < num_missing and engine_key in self._tickets:
                victim = self._victim(ticket)
                num_coming += self.budget.promised_tokens(victim)
                preempted.append(self._preempt(victim))
            if engine_key in self._tickets:
                num_coming -= num_missing
                self._short.append(engine_key)
        return preempted

    def _num_rest(self, ticket: Ticket) -> int:
        """Tokens that it is still expected to make, at least one."""
        return max(1, self._typical.expected_tokens(ticket.request) - ticket.num_output_tokens)

    def _promise_of(self, ticket: Ticket, num_tokens: int) -> int:
        """So many, with what the steps may add until more room is there, and no more than it can ever have."""
        return min(num_tokens + self._margin, self._most_tokens(ticket.request))

    def _most_tokens(self, request: GenerationRequest) -> int:
        """Of prompt and output in the KV cache; the last token is never fed back. Beams as if they shared nothing."""
        sampling = request.sampling
        max_tokens = 1 if sampling.is_context_only else sampling.max_tokens
        num_tokens = len(request.input_ids) + max_tokens - 1
        if sampling.beam_width == 1:
            return num_tokens
        return sampling.beam_width * self.budget.blocks_of(num_tokens) * self.budget.block_tokens

    def _learn(self, ticket: Ticket, now_s: float) -> None:
        """From one that came to its end."""
        if ticket.started_s is not None:
            self.estimate.note_end(now_s - ticket.started_s)
        self._forecast.learn(ticket.request, ticket.num_output_tokens)
        self._typical.learn(ticket.request, ticket.num_output_tokens)

    def _needs_more(self, engine_key: int, ticket: Ticket) -> bool:
        return self._promise_of(ticket, ticket.num_known_tokens) > self.budget.promised_tokens(engine_key)

    def _victim(self, ticket: Ticket) -> int:
        """The youngest of the lowest class; never one above the class of `ticket`, which can be one itself."""
        keys = [
            key
            for key, running in self._tickets.items()
            if running.is_preemptible and running.priority >= ticket.priority
        ]
        return max(keys, key=lambda key: (self._tickets[key].priority, self._tickets[key].started_s or 0.0))

    def _preempt(self, engine_key: int) -> Ticket:
        perf = self._engine.perf_of(engine_key)
        ticket = self._stop(engine_key)
        ticket.perf = perf
        ticket.num_preemptions += 1
        ticket.is_preemptible = False
        self.num_preemptions += 1
        return ticket

    def _stop(self, engine_key: int) -> Ticket:
        self._engine.cancel(engine_key)
        self._leaving.append((self._num_steps + _STEPS_TO_FREE, engine_key))
        return self._leave(engine_key)

    def _leave(self, engine_key: int) -> Ticket:
        """It runs no longer, and its promise is still to be freed."""
        ticket = self._tickets.pop(engine_key)
        del self._keys[ticket.key]
        self._limits.pop(engine_key, None)
        self.estimate.ends.end(engine_key)
        self._prefill.end(engine_key, ticket.priority)
        num_made = ticket.num_output_tokens - (len(ticket.output_ids) if ticket.num_preemptions else 0)
        self._settle(ticket, float(self.budget.promised_tokens(engine_key) * max(1, num_made)))
        return ticket
