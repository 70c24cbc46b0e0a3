# SPDX-License-Identifier: Apache-2.0
"""The budget of what is in flight against a model that counts everything anew, by arbitrary sequences of events."""

from admission_runs import AdmissionRun, request, small_engine
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ensemble_configs.spec.admission_spec import AdmissionSpec
from serving.admission.budget import KvBudget
from serving.engines.seam.scheduling import Priority

BLOCK_TOKENS = 8


class BudgetMachine(RuleBasedStateMachine):
    """Random calls of `KvBudget` by itself."""

    @initialize(
        num_blocks=st.integers(1, 40),
        max_num_seqs=st.integers(1, 6),
        max_tokens=st.none() | st.integers(1, 200),
        batch_share=st.sampled_from([0.3, 0.9, 1.0]),
    )
    def begin(self, num_blocks: int, max_num_seqs: int, max_tokens: int | None, batch_share: float) -> None:
        self.share = {Priority.PREMIUM: 1.0, Priority.STANDARD: 1.0, Priority.BATCH: batch_share}
        self.num_blocks, self.max_num_seqs = num_blocks, max_num_seqs
        self.max_tokens = num_blocks * BLOCK_TOKENS if max_tokens is None else max_tokens
        self.budget = KvBudget(
            num_blocks=num_blocks, block_tokens=BLOCK_TOKENS, max_num_seqs=max_num_seqs, max_tokens=max_tokens,
            shares=self.share,
        )  # fmt: skip
        self.reservations: dict[int, int] = {}
        self.last_key = 0

    def would_fit(self, reservations: dict[int, int], share: float = 1.0) -> bool:
        """Return whether the reservations fit, by brute force: every token is put into a block of its request."""
        blocks = {
            (key, token // BLOCK_TOKENS) for key, num_tokens in reservations.items() for token in range(num_tokens)
        }
        return (
            len(reservations) <= int(share * self.max_num_seqs)
            and len(blocks) <= int(share * self.num_blocks)
            and sum(reservations.values()) <= int(share * self.max_tokens)
        )

    @rule(num_tokens=st.integers(1, 120), priority=st.sampled_from(Priority))
    def reserve(self, num_tokens: int, priority: Priority) -> None:
        self.last_key += 1
        wanted = self.reservations | {self.last_key: num_tokens}
        fits = self.would_fit(wanted, self.share[priority] if self.reservations else 1.0)
        assert self.budget.room_for(priority).holds(self.budget.needs(1, num_tokens)) == fits
        assert not fits or self.budget.can_ever_fit(num_tokens)
        if fits:
            self.budget.reserve(self.last_key, num_tokens)
            self.reservations = wanted

    @precondition(lambda self: self.reservations)
    @rule(data=st.data(), num_more=st.integers(1, 60))
    def grow(self, data: st.DataObject, num_more: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.reservations)))
        wanted = self.reservations | {key: self.reservations[key] + num_more}
        fits = self.would_fit(wanted)
        assert self.budget.grow(key, wanted[key]) == fits
        if fits:
            self.reservations = wanted

    @precondition(lambda self: self.reservations)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.reservations)))
        self.budget.free(key)
        del self.reservations[key]

    @invariant()
    def it_counts_as_brute_force_does(self) -> None:
        if not hasattr(self, "budget"):
            return
        blocks = {(key, token // BLOCK_TOKENS) for key, n in self.reservations.items() for token in range(n)}
        assert len(self.budget) == len(self.reservations)
        assert self.budget.num_reserved_blocks == len(blocks)
        assert self.budget.num_reserved_tokens == sum(self.reservations.values())


class AdmissionMachine(RuleBasedStateMachine):
    """Random requests through admission over the simulated engine; `AdmissionRun` checks after every event."""

    @initialize(
        forecast=st.sampled_from(["learned", "max_tokens"]),
        policy=st.sampled_from(["fifo", "fair_classes"]),
        max_tokens=st.none() | st.integers(100, 300),
        ageing_s=st.sampled_from([0.0, 0.05]),
        is_shortest_first=st.booleans(),
    )
    def begin(self, **settings: object) -> None:
        budget = {name: settings[name] for name in ("forecast", "max_tokens")} | {"forecast_quantile": 0.2}
        queue = {name: settings[name] for name in ("policy", "ageing_s", "is_shortest_first")} | {"max_requests": 20}
        spec = AdmissionSpec.model_validate({"budget": budget, "queue": queue})
        self.run = AdmissionRun(spec, small_engine(max_num_seqs=4, num_kv_blocks=40))
        self.last_key = 0
        for _ in range(25):  # a learned forecast knows something
            self.last_key += 1
            self.run.add(request(self.last_key, 4, 12))
            self.run.drain()

    @rule(
        num_prompt=st.integers(1, 60),
        max_tokens=st.integers(1, 100),
        priority=st.integers(1, 3),
        tenant=st.sampled_from("ab"),
        deadline_ms=st.none() | st.integers(1, 500),
        queue_timeout_ms=st.none() | st.integers(1, 300),
    )
    def add(self, num_prompt: int, max_tokens: int, **scheduling: object) -> None:
        self.last_key += 1
        self.run.add(request(self.last_key, num_prompt, max_tokens, end_id=20, **scheduling))

    @precondition(lambda self: self.run.open)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.run.cancel(data.draw(st.sampled_from(sorted(self.run.open))))

    @rule(num_steps=st.integers(1, 20))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.run.step()

    @rule(milliseconds=st.integers(1, 100))
    def pause(self, milliseconds: int) -> None:
        self.run.clock.sleep_s(milliseconds / 1000)

    def teardown(self) -> None:
        if hasattr(self, "run"):
            self.run.drain()
            assert len(self.run.ends) == self.last_key


BudgetMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
AdmissionMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40)
TestBudget = BudgetMachine.TestCase
TestAdmission = AdmissionMachine.TestCase
