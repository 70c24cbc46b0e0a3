# SPDX-License-Identifier: Apache-2.0
"""Tests of two engines with admission that share a device: what their requests hold together, and which start next."""

import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from admission_runs import request, small_engine
from pydantic import ValidationError

from ensemble_configs.spec.admission_spec import AdmissionSpec, SloSpec
from ensemble_configs.spec.shared_budget_spec import SharedBudgetSpec
from serving.admission.admitting_engine import AdmittingEngine
from serving.engines.seam.clock import VirtualClock
from serving.engines.simulated.simulated_engine import SimulatedEngine
from serving.shared_budget.shared_ledger import SharedLedger
from serving.shared_budget.shared_room import SharedRoom
from trireme.base.errors import RequestError, Unavailable

BLOCK_TOKENS = 8


class Sharing:
    """The engines of one device, stepped in turn on one clock."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock = path, VirtualClock()
        self.engines: dict[str, AdmittingEngine] = {}
        self.ledgers: dict[str, SharedLedger] = {}
        self.running: dict[str, SimulatedEngine] = {}
        self.keys = itertools.count(1)
        self.made: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()

    def add_engine(
        self,
        name: str,
        resources: list[dict[str, Any]],
        *,
        weight: float = 1.0,
        budget: dict[str, Any] | None = None,
        **engine: Any,
    ) -> None:
        spec = SharedBudgetSpec.model_validate({"resources": resources, "weight": weight})
        counts = {resource.name: resource.count for resource in spec.resources}
        ledger = SharedLedger(self.path, member=name, weight=weight, counts=counts, monotonic_s=self.clock.now_s)
        inner = SimulatedEngine(small_engine(**engine), self.clock)
        room = SharedRoom(ledger, spec, self.clock, block_tokens=BLOCK_TOKENS)
        admission = AdmissionSpec.model_validate({"budget": budget or {}})
        self.ledgers[name], self.running[name] = ledger, inner
        self.engines[name] = AdmittingEngine(inner, admission, SloSpec(), self.clock, shared=room)

    def add(self, name: str, num_prompt: int = 8, max_tokens: int = 8, **scheduling: Any) -> int:
        key = next(self.keys)
        self.engines[name].add(request(key, num_prompt, max_tokens, **scheduling))
        return key

    def step(self) -> None:
        for name, engine in self.engines.items():
            for chunk in engine.step():
                self.made[name] += len(chunk.token_ids)
                self.ended[name] += chunk.finish_reason is not None or chunk.error is not None

    def num_running(self) -> int:
        return sum(len(engine._sequences) for engine in self.running.values())

    def held(self, resource: str) -> int:
        return next(iter(self.ledgers.values())).resources()[resource].held


@pytest.fixture
def sharing(tmp_path: Path) -> Iterator[Sharing]:
    made = Sharing(tmp_path / "ledger")
    yield made
    for ledger in made.ledgers.values():
        ledger.close()


STREAMS = {"name": "streams", "count": 4}


def test_the_requests_of_two_engines_together_never_hold_more_than_there_is(sharing: Sharing) -> None:
    for name in ("a", "b"):
        sharing.add_engine(name, [STREAMS])
        for _ in range(20):
            sharing.add(name)
    most = 0
    while any(engine.has_work for engine in sharing.engines.values()):
        sharing.step()
        most = max(most, sharing.num_running())
    assert most == 4
    assert sharing.ended == {"a": 20, "b": 20}
    assert sharing.held("streams") == 0


@pytest.mark.parametrize("weight", [1, 2, 4])
def test_tokens_are_in_proportion_to_weights_while_both_are_saturated(sharing: Sharing, weight: int) -> None:
    sharing.add_engine("a", [STREAMS | {"count": 12}], num_kv_blocks=400)
    sharing.add_engine("b", [STREAMS | {"count": 12}], weight=weight, num_kv_blocks=400)
    rng = random.Random(4)
    for _ in range(400):
        sharing.add("a", max_tokens=rng.randint(1, 40))
        sharing.add("b", max_tokens=rng.randint(1, 40))
    while not any(sharing.ended[name] > 250 for name in "ab"):
        sharing.step()
    assert sharing.made["b"] / sharing.made["a"] == pytest.approx(weight, rel=0.08)


def test_longer_requests_do_not_give_a_model_more_of_the_device(sharing: Sharing) -> None:
    sharing.add_engine("long", [STREAMS | {"count": 8}])
    sharing.add_engine("short", [STREAMS | {"count": 8}])
    for _ in range(3000):
        for name, max_tokens in (("long", 40), ("short", 5)):
            while sharing.engines[name].stats().num_waiting < 20:
                sharing.add(name, max_tokens=max_tokens)
        sharing.step()
    held_ms = {"long": 400 * sharing.ended["long"], "short": 50 * sharing.ended["short"]}  # a token takes 10
    assert held_ms["long"] / held_ms["short"] == pytest.approx(1, rel=0.05)


def test_blocks_are_held_for_the_longest_output_that_a_client_allows(sharing: Sharing) -> None:
    sharing.add_engine("a", [{"name": "kv", "count": 20, "per": "kv_block", "units": 2}])
    sharing.add_engine("b", [{"name": "kv", "count": 20, "per": "token"}])
    sharing.add("a", num_prompt=8, max_tokens=9)  # 16 tokens in the cache at most: 2 blocks
    sharing.step()
    assert sharing.held("kv") == 4
    sharing.add("b", num_prompt=8, max_tokens=9)
    sharing.step()
    assert sharing.held("kv") == 20
    sharing.add("b", num_prompt=8, max_tokens=1)
    sharing.step()
    assert sharing.engines["b"].stats().num_waiting == 1


def test_a_request_that_does_not_fit_the_device_is_refused_by_name(sharing: Sharing) -> None:
    sharing.add_engine("a", [{"name": "kv", "count": 3, "per": "kv_block"}])
    sharing.add("a", num_prompt=8, max_tokens=17)
    with pytest.raises(RequestError, match="takes 4 of kv, of which there are 3 for all models"):
        sharing.add("a", num_prompt=8, max_tokens=18)


def test_an_engine_that_has_nothing_to_do_but_wait_for_the_others_sleeps_two_milliseconds_a_step(
    sharing: Sharing,
) -> None:
    sharing.add_engine("a", [STREAMS | {"count": 1}])
    sharing.add_engine("b", [STREAMS | {"count": 1}])
    sharing.add("a", max_tokens=50)
    sharing.engines["a"].step()
    sharing.add("b")
    before_s = sharing.clock.now_s()
    for _ in range(10):
        assert sharing.engines["b"].has_work
        assert sharing.engines["b"].step() == []
    assert sharing.clock.now_s() - before_s == pytest.approx(0.020)


def test_a_request_that_left_while_it_waited_keeps_no_room_from_the_others(sharing: Sharing) -> None:
    sharing.add_engine("a", [{"name": "kv", "count": 10, "per": "kv_block"}])
    sharing.add_engine("b", [{"name": "kv", "count": 10, "per": "kv_block"}])
    sharing.add("a", num_prompt=8, max_tokens=60)
    sharing.step()
    large = sharing.add("b", num_prompt=8, max_tokens=70)
    sharing.step()
    sharing.add("a", num_prompt=8, max_tokens=1)
    sharing.step()
    assert sharing.engines["a"].stats().num_waiting == 1  # behind what b wants
    sharing.engines["b"].cancel(large)
    sharing.engines["b"].step()
    sharing.engines["a"].step()
    assert sharing.engines["a"].stats().num_waiting == 0


@pytest.mark.parametrize("forecast", ["learned", "max_tokens"])
def test_nothing_stays_held_whatever_becomes_of_requests(sharing: Sharing, forecast: str) -> None:
    """Random sizes, cancels, deadlines and preemptions; checked after every step."""
    rng = random.Random(7)
    resources = [STREAMS | {"count": 9}, {"name": "kv", "count": 60, "per": "kv_block"}]
    budget = {"forecast": forecast, "forecast_quantile": 0.2}
    for name in ("a", "b"):
        sharing.add_engine(name, resources, weight=rng.choice([1, 2]), budget=budget, num_kv_blocks=40, max_num_seqs=6)
    open_keys: list[tuple[str, int]] = []
    for _ in range(1500):
        for name in sharing.engines:
            if rng.random() < 0.5:
                limits = {"deadline_ms": rng.choice([None, 200, 2000]), "queue_timeout_ms": rng.choice([None, 500])}
                with contextlib.suppress(Unavailable):
                    open_keys.append((name, sharing.add(name, rng.randint(1, 60), rng.randint(1, 80), **limits)))
            if open_keys and rng.random() < 0.1:
                victim, key = open_keys.pop(rng.randrange(len(open_keys)))
                sharing.engines[victim].cancel(key)
        sharing.step()
        uses = sharing.ledgers["a"].resources()
        assert sharing.num_running() <= uses["streams"].held <= 9
        assert sum(engine.stats().num_used_kv_blocks for engine in sharing.running.values()) <= uses["kv"].held <= 60
    while any(engine.has_work for engine in sharing.engines.values()):
        sharing.step()
    assert (sharing.engines["a"].num_preemptions > 0) == (forecast == "learned")
    assert sharing.held("streams") == sharing.held("kv") == 0


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"resources": []}, "at least 1 item"),
        ({"resources": [STREAMS, STREAMS]}, "each resource may be named once, got streams, streams"),
        ({"resources": [{"name": "streams"}]}, "count\n  Field required"),
        ({"resources": [STREAMS | {"count": 0}]}, "greater than or equal to 1"),
        ({"resources": [STREAMS | {"per": "second"}]}, "'request', 'kv_block' or 'token'"),
        ({"resources": [STREAMS], "weight": 0}, "greater than or equal to 0.001"),
        ({"resources": [STREAMS | {"name": "a b"}]}, "match pattern"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_shared_budget_that_cannot_be_is_refused(spec: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        SharedBudgetSpec.model_validate(spec)
