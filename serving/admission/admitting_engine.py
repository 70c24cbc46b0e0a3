# SPDX-License-Identifier: Apache-2.0
"""Admission for any engine: a wrapper that starts what fits the budget, in the order of the policy."""

import math
import threading
from collections import Counter

import msgspec

from ensemble_configs.spec.admission_spec import AdmissionSpec, SloSpec
from serving.admission.batch_prefill import BatchPrefill
from serving.admission.in_flight import InFlight
from serving.admission.load_shedding import LoadShedding
from serving.admission.offered_load import OfferedLoad
from serving.admission.queue import RequestQueue, late_error
from serving.admission.queued_request import QueuedRequest
from serving.admission.tenant_reserve import EXPECTED_S, TenantReserve
from serving.admission.tpot_estimate import TpotEstimate
from serving.engines.seam.base import AdmissionStats, Engine, EngineStats, GenerationRequest, PerfMetrics, TokenChunk
from serving.engines.seam.clock import Clock
from serving.engines.seam.request_limits import refuse_unservable
from serving.engines.seam.scheduling import Priority
from serving.engines.seam.wrapped_engine import WrappedEngine
from serving.shared_budget.shared_room import POLL_S, SharedRoom
from trireme.base.errors import RequestError, ServingError, Unavailable


class AdmittingEngine(WrappedEngine):
    """An engine with a queue before it, which starts a request only when its KV budget is reserved.

    `add`, `leave`, `refuse_late` and `next_late_in_s` may be called by another thread while `step` runs: they change
    the queue alone, and never touch the engine.

    Args:
        tokens_per_step: most tokens that the engine adds to a sequence in one step, drafts included.
        shared: KV budget on the device that other engines reserve from, too; None: there is none.
    """

    def __init__(
        self,
        engine: Engine,
        spec: AdmissionSpec,
        slo: SloSpec,
        clock: Clock,
        *,
        tokens_per_step: int = 1,
        shared: SharedRoom | None = None,
    ) -> None:
        super().__init__(engine, msgspec.structs.replace(engine.info, is_admitting=True))
        self._clock = clock
        self._lock = threading.Lock()  # guards all fields below, not the engine: nobody waits for a step
        self._shared = shared
        self._last_premium_s = -math.inf
        self._is_shut_out = False  # the next request finds no shared KV budget
        self._reserve = TenantReserve(spec.budget.tenant_reserve, spec.queue.tenant_weights)
        is_by_class = spec.queue.policy != "fifo"  # in a single queue, a request held back would hold up all
        self._prefill = BatchPrefill(
            step_tokens=engine.info.max_num_batched_tokens,
            share=spec.budget.batch_prefill_share if is_by_class else 1.0,
        )
        self._in_flight = InFlight(
            engine,
            spec.budget,
            shared,
            reserve=self._reserve,
            prefill=self._prefill,
            tokens_per_step=tokens_per_step,
            true_up=self._true_up,
        )
        self.budget = self._in_flight.budget
        estimate = self._in_flight.estimate
        self._queue = RequestQueue(spec.queue, estimate, first_token_s=_seconds(slo.ttft_ms, math.inf))
        self._tpot = TpotEstimate(estimate.ends, None if slo.tpot_ms is None else slo.tpot_ms / 1000)
        self._num_refused: Counter[str] = Counter()
        self._shedding: LoadShedding | None = None
        if spec.ladder is not None:
            self._load = OfferedLoad(self.budget, spec.ladder.window_s)
            self._shedding = LoadShedding(spec.ladder, self._load)

    def add(self, request: GenerationRequest) -> None:
        """Put a request into the queue; the first step with room for the request starts it.

        Raises:
            RequestError: the request could never run.
            Unavailable: the request is refused for now; the error's facts have `retry_after_ms`.
        """
        refuse_unservable(request, self.info)
        with self._lock:
            self._in_flight.refuse_never_fitting(request)
            self._note_arrival(request, self._clock.now_s())
            try:
                self._queue.join(self._ticket(self._degraded(request), self._clock.now_s()))
            except Unavailable as exc:
                self._count_refusal(request, exc)
                raise

    def _note_arrival(self, request: GenerationRequest, now_s: float) -> None:
        self._reserve.note_arrival(request.scheduling.tenant, now_s)
        if request.scheduling.priority == Priority.PREMIUM:
            self._last_premium_s = now_s
        self.budget.is_premium_expected = now_s - self._last_premium_s < EXPECTED_S

    def _degraded(self, request: GenerationRequest) -> GenerationRequest:
        """Return the request as load shedding lets it run.

        Raises:
            Unavailable: the request's class is not let in.
        """
        if self._shedding is None:
            return request
        now_s = self._clock.now_s()
        self._in_flight.note_offered(request, self._load, now_s)
        self._shedding.update(now_s)
        return self._shedding.applied(request, now_s, use=self.use())

    def use(self) -> float:
        """Return the fraction of the budget that running and waiting requests take; 1: the whole budget."""
        budget = self.budget
        num_seqs, num_tokens = len(budget) + len(self._queue), budget.num_reserved_tokens + self._queue.num_tokens
        return max(num_seqs / budget.num_seats, num_tokens / budget.max_tokens)

    def _ticket(self, request: GenerationRequest, now_s: float) -> QueuedRequest:
        scheduling = request.scheduling
        return QueuedRequest(
            request=request,
            arrival_s=now_s,
            priority=Priority(scheduling.priority),
            tenant=scheduling.tenant,
            num_queued_tokens=len(request.input_ids) + self._in_flight.typical_tokens(request),
            start_by_s=now_s + _seconds(scheduling.queue_timeout_ms, math.inf),
            end_by_s=now_s + _seconds(scheduling.deadline_ms, math.inf),
            is_preemptible=self._in_flight.may_preempt(request),
        )

    def leave(self, key: int) -> bool:
        """Take a request out of the queue; return False if the request does not wait."""
        with self._lock:
            is_waiting = key in self._queue
            if is_waiting:
                self._queue.leave(key)
            return is_waiting

    def cancel(self, key: int) -> None:
        """Stop a request, waiting or running."""
        if not self.leave(key) and key in self._in_flight:
            with self._lock:
                self._in_flight.stop(key)

    def refuse_late(self) -> list[TokenChunk]:
        """Take the requests with a passed time limit out of the queue, and return their last chunks."""
        with self._lock:
            now_s = self._clock.now_s()
            return [self._refusal_of_late(queued, now_s) for queued in self._queue.take_late(now_s)]

    def next_late_in_s(self) -> float:
        """Return the seconds until `refuse_late` may have a request to refuse; 0: now, math.inf: never."""
        with self._lock:
            return max(0.0, self._queue.next_limit_s() - self._clock.now_s())

    def perf_of(self, key: int) -> PerfMetrics | None:
        """Return the engine's metrics of a running request; None for one that does not run."""
        return self._in_flight.perf_of(key) if key in self._in_flight else None

    def step(self) -> list[TokenChunk]:
        """End late requests, start what fits, run one iteration and account for its tokens."""
        chunks = self.refuse_late()
        with self._lock:
            now_s = self._clock.now_s()
            if self._shedding is not None:
                self._shedding.update(now_s)
            self._in_flight.free_left()
            chunks += [self._refusal_of_late(queued, now_s) for queued in self._in_flight.stop_late(now_s)]
            for queued in self._in_flight.give_room():
                self._queue.rejoin(queued)
            num_prompt_tokens = self._start(now_s, chunks)
            num_seqs, num_made = len(self._in_flight), 0
        if self._is_shut_out and not self._engine.has_work:
            self._clock.sleep_s(POLL_S)
        made = self._engine.step()
        with self._lock:
            after_s = self._clock.now_s()
            for chunk in made:
                if self._in_flight.note(chunk, after_s):
                    num_made += len(chunk.token_ids)
                    chunks.append(chunk)
            if num_seqs:
                if num_made:
                    self._prefill.note_step()
                step_s = after_s - now_s
                self._tpot.note(step_s, num_seqs=num_seqs, num_prompt_tokens=num_prompt_tokens, num_made=num_made)
                self.budget.num_seats = self._tpot.most_seqs(self.budget.max_num_seqs)
        return chunks

    @property
    def has_work(self) -> bool:
        """Return whether a request waits or runs, or a stopped request still has blocks to free."""
        return bool(len(self._queue)) or self._in_flight.is_leaving or self._engine.has_work

    @property
    def num_preemptions(self) -> int:
        """Return the number of preemptions for want of KV budget, at most one for each request."""
        return self._in_flight.num_preemptions

    def stats(self) -> EngineStats:
        """Return the engine's statistics, with the queue of this wrapper added."""
        stats = self._engine.stats()
        with self._lock:
            return msgspec.structs.replace(
                stats,
                num_waiting=stats.num_waiting + len(self._queue),
                num_preemptions=(stats.num_preemptions or 0) + self.num_preemptions,
                admission=AdmissionStats(
                    num_waiting=self._queue.num_waiting,
                    num_refused=dict(self._num_refused),
                    degradation_step=self._shedding.step if self._shedding else None,
                ),
            )

    def _start(self, now_s: float, chunks: list[TokenChunk]) -> int:
        """Start what fits, and return the number of prompt tokens started.

        A request that the engine refuses gets its last chunk in `chunks`.
        """
        num_prompt_tokens, self._is_shut_out = 0, False
        # While it could not begin what it has, more would only wait there, in its own order. (An engine that is told of
        # late may think that something waits when all is done.)
        if len(self._in_flight) and self._engine.stats().num_waiting:
            self._want_nothing_shared()
            return 0
        while (found := self._queue.first(now_s)) is not None:
            queued, room = found
            num_tokens = self._in_flight.first_reservation(queued)
            left = self.budget.room_for(room, queued.tenant)
            if left.holds(self.budget.needs(1, num_tokens)):
                num_waiting = min(len(self._queue), left.num_seats)
                if not self._in_flight.take_shared(queued, num_waiting=num_waiting):
                    self._is_shut_out = True
                    break
                num_prompt_tokens += queued.num_known_tokens
                queued.expected_work = self._in_flight.work_of(queued, num_tokens)
                self._queue.take(queued)
                try:
                    self._in_flight.begin(queued, num_tokens, now_s)
                except RequestError as exc:
                    chunks.append(TokenChunk(queued.key, [], error=str(exc)))
            elif left.num_seats < 1 or not self._queue.pass_over(queued):
                break
        if not self._is_shut_out:
            self._want_nothing_shared()
        return num_prompt_tokens

    def _want_nothing_shared(self) -> None:
        if self._shared is not None:
            self._shared.want_nothing()

    def _refusal_of_late(self, queued: QueuedRequest, now_s: float) -> TokenChunk:
        error = late_error(queued, now_s)
        self._count_refusal(queued.request, error)
        return TokenChunk(queued.key, [], error=str(error))

    def _count_refusal(self, request: GenerationRequest, error: ServingError) -> None:
        name = Priority(request.scheduling.priority).name.lower()
        self._num_refused[f"{name} {error.facts['reason']}"] += 1

    def _true_up(self, queued: QueuedRequest, work: float) -> None:
        self._queue.true_up(queued, work)


def _seconds(milliseconds: float | None, otherwise_s: float) -> float:
    return otherwise_s if milliseconds is None else milliseconds / 1000
