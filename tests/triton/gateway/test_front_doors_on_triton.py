# SPDX-License-Identifier: Apache-2.0
"""Our sides of the comparison of front doors, on the real server: what is asked, answered and counted."""

import pytest

from benchmarks.peers.cpu_parts import ENGINE, FRONT_DOOR, SERVER
from benchmarks.peers.figures import figures
from benchmarks.peers.gateway import SimulatedGateway
from benchmarks.peers.peer import Peer
from benchmarks.peers.rounds import Plan, check_counts
from benchmarks.peers.simulated import SimulatedEnsemble
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.spec.deployment import load_deployment

TOKENIZER = load_deployment(DEFAULT_DEPLOYMENT).model.tokenizer.dir
PLAN = Plan(
    users=(4,), num_rounds=1, num_requests=4, input_tokens=16, output_tokens=24, seed=1,
    tokenizer_dir=str(TOKENIZER), adds_special_tokens=False,
)  # fmt: skip
SIDES: list[Peer] = [
    SimulatedEnsemble(TOKENIZER, step_ms=2, has_delay=True, name="gRPC"),
    SimulatedGateway(TOKENIZER, step_ms=2, name="gateway"),
]


@pytest.mark.parametrize("side", SIDES, ids=lambda side: side.name)
def test_a_side_counts_tokens_alike_answers_to_the_length_and_tells_what_its_parts_cost(side: Peer) -> None:
    with side.started() as started:
        check_counts(side.name, started, PLAN)
        load = PLAN.load(4, 0)
        found = figures(started.put_on(load), load, output_tokens=PLAN.output_tokens)
    parts, all_s = found.cpu_parts_s_per_1000_tokens, found.server_cpu_s_per_1000_tokens
    assert parts is not None
    assert all_s is not None
    assert parts.keys() == {FRONT_DOOR, SERVER, ENGINE}
    assert min(parts.values()) > 0
    assert all_s == pytest.approx(sum(parts.values()), rel=0.2)
    assert found.tokens_per_core_s == pytest.approx(1000 / all_s)
