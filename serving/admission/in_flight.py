# SPDX-License-Identifier: Apache-2.0
"""The requests that run in an engine, each with its reservation from start to end or preemption."""

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
from serving.admission.output_length import LearnedForecast
from serving.admission.queued_request import QueuedRequest
from serving.admission.resumption import is_resumable, resumed
from serving.admission.tenant_reserve import TenantReserve
from serving.admission.wait_estimate import WaitEstimate
from serving.engines.seam.base import Engine, FinishReason, GenerationRequest, PerfMetrics, TokenChunk
from serving.engines.seam.scheduling import Priority
from serving.shared_budget.shared_room import SharedRoom
from trireme.base.errors import RequestError

# Preempted requests go on under keys from this one on, above all keys of callers' requests.
_FIRST_OTHER_KEY = 1 << 61
_STEPS_TO_FREE = 2  # most steps, by the seam, until an engine has freed a stopped request's blocks
_TYPICAL = 0.5  # the quantile of the lengths that waits are computed from


class InFlight:
    """The requests given to an engine, each with a reservation of all the KV budget that it is expected to take.

    A request that makes more than its predicted output length gets a larger reservation, block by block. Where there is
    no room, a running request is preempted: stopped, and started again later with its output behind its prompt. Each at
    most once, for then it reserves everything that it may make. A request that would not go on exactly where it was
    stopped reserves everything from the beginning.

    Args:
        shared: KV budget on the device that other engines reserve from, too; None: there is none.
        reserve: the part that a tenant leaves free for other tenants.
        prefill: is told of each start and end.
        tokens_per_step: most tokens that the engine adds to a sequence in one step, drafts included.
        true_up: called with each request that has stopped running, and the work that it took.
    """

    def __init__(
        self,
        engine: Engine,
        spec: BudgetSpec,
        shared: SharedRoom | None,
        *,
        reserve: TenantReserve,
        prefill: BatchPrefill,
        tokens_per_step: int,
        true_up: Callable[[QueuedRequest, float], None],
    ) -> None:
        self._engine = engine
        self._true_up = true_up
        self._shared = shared
        info = engine.info
        self.budget = KvBudget(
            num_blocks=max(1, int(spec.kv_fraction * info.num_kv_blocks)),
            block_tokens=info.kv_block_tokens,
            max_num_seqs=info.max_num_seqs,
            max_tokens=spec.max_tokens,
            shares={priority: getattr(spec.shares, priority.name.lower()) for priority in Priority},
            on_free=None if shared is None else shared.free,
            reserve=reserve,
        )
        self._prefill = prefill
        self.estimate = WaitEstimate(self.budget, prefill)
        self._is_learning = spec.forecast == "learned"
        self._forecast = LearnedForecast(spec.forecast_quantile)
        self._typical = LearnedForecast(_TYPICAL)
        self._queued: dict[int, QueuedRequest] = {}  # by the engine's key
        self._keys: dict[int, int] = {}  # the engine's key by the caller's
        self._limits: dict[int, float] = {}  # deadlines in seconds, by the engine's key
        self._other_keys = itertools.count(_FIRST_OTHER_KEY)
        self._short: list[int] = []  # the engine's keys of requests that need more room soon
        self._leaving: deque[tuple[int, int]] = deque()  # stopped: step that frees the reservation, and key
        # A request that needs more may have to wait until one that was stopped for it has left.
        self._margin = (1 + _STEPS_TO_FREE) * tokens_per_step
        self._num_steps = 0
        self.num_preemptions = 0

    def __len__(self) -> int:
        """Return the number of running requests."""
        return len(self._queued)

    def __contains__(self, key: int) -> bool:
        """Return whether a request runs; `key` is the caller's key."""
        return key in self._keys

    @property
    def is_leaving(self) -> bool:
        """Return whether reservations of stopped requests become free only with further steps."""
        return bool(self._leaving)

    def refuse_never_fitting(self, request: GenerationRequest) -> None:
        """Check that a request fits the budget when it runs alone.

        Raises:
            RequestError: the request does not fit.
        """
        if not self.budget.can_ever_fit(self._most_tokens(request)):
            most = min(self.budget.max_tokens, self.budget.num_blocks * self.budget.block_tokens)
            raise RequestError(
                f"{len(request.input_ids)} prompt tokens + max_tokens {request.sampling.max_tokens} are more than the "
                f"{most} tokens that may be in flight; ask for less",
                field="max_tokens",
                value=request.sampling.max_tokens,
                max=most,
            )
        if self._shared is not None:
            self._shared.refuse_never_fitting(self._most_tokens(request))

    def typical_tokens(self, request: GenerationRequest) -> int:
        """Return the output tokens that a request will make, by the median of its tenant's earlier requests."""
        return self._typical.expected_tokens(request)

    def note_offered(self, request: GenerationRequest, load: OfferedLoad, now_s: float) -> None:
        """Add an arriving request to the offered load, by what its tenant's requests made.

        A request adds nothing while the time of a token is unknown.
        """
        num_output = self._typical.expected_tokens(request)
        stay_s = self.estimate.first_token_s + (num_output - 1) * self.estimate.ends.token_s
        load.note(now_s, stay_s=stay_s, num_tokens=len(request.input_ids) + num_output)

    def may_preempt(self, request: GenerationRequest) -> bool:
        """Return whether a request may reserve less than it can take, because it can be stopped and resumed."""
        return self._is_learning and is_resumable(request)

    def first_reservation(self, queued: QueuedRequest) -> int:
        """Return the tokens to reserve at a start: as many as expected, or all possible if it must not be stopped."""
        request = queued.request
        if not queued.is_preemptible:
            return self._most_tokens(request)
        return self._reservation_of(queued, len(request.input_ids) + self._forecast.expected_tokens(request))

    def work_of(self, queued: QueuedRequest, num_reserved_tokens: int) -> float:
        """Return the expected work of a request: its reserved tokens times the steps that it holds them."""
        return float(num_reserved_tokens * self._num_rest(queued))

    def take_shared(self, queued: QueuedRequest, *, num_waiting: int) -> bool:
        """Reserve from the shared budget all that a request may need; return False if it cannot begin now."""
        queued.engine_key = next(self._other_keys) if queued.num_preemptions else queued.key
        if self._shared is None:
            return True
        return self._shared.take(queued.engine_key, self._most_tokens(queued.request), num_waiting=num_waiting)

    def begin(self, queued: QueuedRequest, num_tokens: int, now_s: float) -> None:
        """Reserve `num_tokens` tokens for a request that has its shared budget, and give it to the engine.

        Raises:
            RequestError: the engine refuses the request; its reservation is released.
        """
        engine_key = queued.engine_key
        queued.started_s = now_s
        self._queued[engine_key] = queued
        self._keys[queued.key] = engine_key
        self.budget.reserve(engine_key, num_tokens, queued.tenant)
        if queued.end_by_s < math.inf:
            self._limits[engine_key] = queued.end_by_s
        self._prefill.begin(engine_key, queued.priority, queued.num_known_tokens)
        self.estimate.note_start(queued.priority, now_s)
        self.estimate.ends.begin(engine_key, num_output_tokens=self._num_rest(queued))
        try:
            self._engine.add(resumed(queued, engine_key) if queued.num_preemptions else queued.request)
        except RequestError:
            self._leave(engine_key)
            self.budget.free(engine_key)
            raise

    def note(self, chunk: TokenChunk, now_s: float) -> bool:
        """Account for an engine's chunk and give it the caller's key; return False if its request has been stopped."""
        engine_key = chunk.key
        queued = self._queued.get(engine_key)
        if queued is None:
            return False
        chunk.key = queued.key
        self._prefill.note_token(engine_key)
        if not queued.num_output_tokens and chunk.token_ids and queued.started_s is not None:
            self.estimate.note_first_token(now_s - queued.started_s)
        queued.num_output_tokens += len(chunk.token_ids)
        if queued.is_preemptible:
            queued.output_ids += chunk.token_ids
        if chunk.finish_reason is not None or chunk.error is not None:
            if chunk.perf is not None and queued.num_preemptions:
                perf = joined_perf(queued.perf, chunk.perf)
                num_preemptions = (perf.num_preemptions or 0) + queued.num_preemptions
                chunk.perf = msgspec.structs.replace(perf, num_preemptions=num_preemptions)
            if chunk.error is None and chunk.finish_reason is not FinishReason.CANCELLED:
                self._learn(queued, now_s)
            self._leave(engine_key)
            if chunk.finish_reason is FinishReason.STOP_STRING:
                self._leaving.append((self._num_steps + _STEPS_TO_FREE, engine_key))  # the engine was told just now
            else:
                self.budget.free(engine_key)
        elif queued.is_preemptible and self._needs_more(engine_key, queued):
            self._short.append(engine_key)
        return True

    def stop(self, key: int) -> QueuedRequest:
        """Stop a request by the caller's key; its reservation stays until its blocks are free."""
        return self._stop(self._keys[key])

    def stop_late(self, now_s: float) -> list[QueuedRequest]:
        """Stop the requests that should have ended by now, and return them."""
        return [self._stop(key) for key in [key for key, limit_s in self._limits.items() if limit_s <= now_s]]

    def perf_of(self, key: int) -> PerfMetrics | None:
        """Return the engine's metrics of a request, joined with those from before its preemption."""
        engine_key = self._keys[key]
        perf, earlier = self._engine.perf_of(engine_key), self._queued[engine_key].perf
        return perf if perf is None or earlier is None else joined_perf(earlier, perf)

    def free_left(self) -> None:
        """Release, at the beginning of a step, the reservations of requests that were stopped long enough ago."""
        self._num_steps += 1
        still: deque[tuple[int, int]] = deque()
        while self._leaving and (self._leaving[0][0] <= self._num_steps or not self._engine.has_work):
            leaving = self._leaving.popleft()
            if self._engine.is_ending(leaving[1]):  # an engine that batches by itself has not confirmed it
                still.append(leaving)
            else:
                self.budget.free(leaving[1])
        self._leaving.extendleft(reversed(still))

    def give_room(self) -> list[QueuedRequest]:
        """Raise the reservations of requests that make more than expected; return the requests preempted for them.

        A request that finds no room gets it within two steps, because another request is stopped now; the margin in its
        reservation lasts for those steps.
        """
        num_coming = sum(self.budget.reserved_tokens(key) for _, key in self._leaving)
        preempted: list[QueuedRequest] = []
        short, self._short = self._short, []
        for engine_key in short:
            queued = self._queued.get(engine_key)
            if queued is None:  # the request has left, or was preempted for another
                continue
            num_blocks = self.budget.blocks_of(queued.num_known_tokens + self._margin)
            num_tokens = self._reservation_of(queued, num_blocks * self.budget.block_tokens - self._margin)
            if self.budget.grow(engine_key, num_tokens):
                continue
            num_missing = num_tokens - self.budget.reserved_tokens(engine_key)
            while num_coming < num_missing and engine_key in self._queued:
                victim = self._victim(queued)
                num_coming += self.budget.reserved_tokens(victim)
                preempted.append(self._preempt(victim))
            if engine_key in self._queued:
                num_coming -= num_missing
                self._short.append(engine_key)
        return preempted

    def _num_rest(self, queued: QueuedRequest) -> int:
        """Return the tokens that a request is still expected to make, at least 1."""
        return max(1, self._typical.expected_tokens(queued.request) - queued.num_output_tokens)

    def _reservation_of(self, queued: QueuedRequest, num_tokens: int) -> int:
        """Return `num_tokens` with the margin for the next steps, at most what the request can ever have."""
        return min(num_tokens + self._margin, self._most_tokens(queued.request))

    def _most_tokens(self, request: GenerationRequest) -> int:
        """Return the most tokens of a request in the KV cache; the last token is never fed back.

        Beams count as if they shared nothing.
        """
        sampling = request.sampling
        max_tokens = 1 if sampling.is_context_only else sampling.max_tokens
        num_tokens = len(request.input_ids) + max_tokens - 1
        if sampling.beam_width == 1:
            return num_tokens
        return sampling.beam_width * self.budget.blocks_of(num_tokens) * self.budget.block_tokens

    def _learn(self, queued: QueuedRequest, now_s: float) -> None:
        """Learn the stay and the output length of a request that came to its end."""
        if queued.started_s is not None:
            self.estimate.note_end(now_s - queued.started_s)
        if self._is_learning:
            self._forecast.learn(queued.request, queued.num_output_tokens)
        self._typical.learn(queued.request, queued.num_output_tokens)

    def _needs_more(self, engine_key: int, queued: QueuedRequest) -> bool:
        return self._reservation_of(queued, queued.num_known_tokens) > self.budget.reserved_tokens(engine_key)

    def _victim(self, queued: QueuedRequest) -> int:
        """Return the key of the youngest preemptible request of the lowest class, which may be `queued`'s own.

        No request of a class above that of `queued` is chosen.
        """
        keys = [
            key
            for key, running in self._queued.items()
            if running.is_preemptible and running.priority >= queued.priority
        ]
        return max(keys, key=lambda key: (self._queued[key].priority, self._queued[key].started_s or 0.0))

    def _preempt(self, engine_key: int) -> QueuedRequest:
        perf = self._engine.perf_of(engine_key)
        queued = self._stop(engine_key)
        queued.perf = perf
        queued.num_preemptions += 1
        queued.is_preemptible = False
        self.num_preemptions += 1
        return queued

    def _stop(self, engine_key: int) -> QueuedRequest:
        self._engine.cancel(engine_key)
        self._leaving.append((self._num_steps + _STEPS_TO_FREE, engine_key))
        return self._leave(engine_key)

    def _leave(self, engine_key: int) -> QueuedRequest:
        """Take a request off the running ones; its reservation is still to be released."""
        queued = self._queued.pop(engine_key)
        del self._keys[queued.key]
        self._limits.pop(engine_key, None)
        self.estimate.ends.end(engine_key)
        self._prefill.end(engine_key, queued.priority)
        num_made = queued.num_output_tokens - (len(queued.output_ids) if queued.num_preemptions else 0)
        self._true_up(queued, float(self.budget.reserved_tokens(engine_key) * max(1, num_made)))
        return queued
