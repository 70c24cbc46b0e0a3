# SPDX-License-Identifier: Apache-2.0
"""A sample of what `make soak` holds 20,000 requests to: no process grows with the requests that it has served."""

from collections.abc import Callable

from mixed_load import MixedLoad
from resident_memory import resident_mib
from running_server import RunningServer
from test_cancellation import wait_until

NUM_REQUESTS = 1_000


def test_after_a_warm_up_no_process_grows_by_1_kib_a_request(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(engine={"provider": "simulated", "step_ms": 1.0, "num_kv_blocks": 4096})
    load = MixedLoad(server.url, seed=3)
    memory = []
    for _ in range(2):
        load.run(NUM_REQUESTS)
        wait_until(lambda: server.num_streams() == 0 and server.used_kv_blocks() == 0, 10)
        memory.append(resident_mib(server))
    before, after = memory
    growth_kib = {name: 1024 * (after[name] - before[name]) / NUM_REQUESTS for name in before}
    assert max(growth_kib.values()) < 1, growth_kib
    assert load.outcomes["read"] > 800
    assert min(load.outcomes.values()) > 50
