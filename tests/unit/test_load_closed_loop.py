# SPDX-License-Identifier: Apache-2.0
"""The rates of a closed loop whose users go in waves, against a server that plays a script."""

from pathlib import Path

import pytest
from kserve_server import KServeServer, Step, response

from clients.load.figures.run_figures import RunFigures, figures_of
from clients.load.load_options import Load
from clients.load.run_command import put_on

NUM_USERS, NUM_TOKENS = 8, 12


def test_both_rates_are_littles_law_and_agree(tmp_path: Path) -> None:
    script: list[Step] = [0.1]  # s to the first token, then 10 ms to each
    for number in range(NUM_TOKENS):
        script += [response("x", num_output_tokens=1, final=number == NUM_TOKENS - 1), 0.01]

    def measured(folder: Path) -> RunFigures:
        workload = {"kind": "fixed", "prompts": ["a"], "max_tokens": NUM_TOKENS}
        with KServeServer(*script[:-1]) as server:
            load = Load(url=server.url, workload=workload, num_users=NUM_USERS, num_requests=100)  # 12.5 waves
            return figures_of(put_on(load, folder, warmup=0, metrics=None))

    def is_littles(figures: RunFigures) -> bool:
        in_flight = figures.requests.per_s * figures.latencies["e2e"].mean / 1e3
        return in_flight == pytest.approx(NUM_USERS, rel=0.01)

    # The client is a moment between two requests, longer on a busy machine: one of three runs without that will do.
    assert any(is_littles(figures := measured(tmp_path / name)) for name in "abc")
    assert figures.output_tokens.per_s == pytest.approx(NUM_TOKENS * figures.requests.per_s, rel=1e-9)
