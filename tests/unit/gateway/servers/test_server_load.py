# SPDX-License-Identifier: Apache-2.0
"""The load of servers: what a page tells, what others have there, and a choice that sees it."""

from typing import Any

import pytest
from manual_clock import ManualClock

from clients.infer_messages import GenerateRequest
from gateway.servers.choice import choose
from gateway.servers.prefixes import numbers_of
from gateway.servers.server import FRESH_S, Server
from gateway.servers.server_load import EngineLoad, Load, engine_of, engines_on, loads_of

NO_CLIENT: Any = None
MODEL = "ensemble"
PAGE = b"""\
# HELP trireme_requests_running Requests in the engine's batch
# TYPE trireme_requests_running gauge
trireme_engine_up{model="tensorrt_llm",version="1"} 1
trireme_engine_up{model="tensorrt_llm",version="2"} 0
trireme_engine_up{version="1",model="code_tensorrt_llm"} 1.000000
trireme_requests_running{model="tensorrt_llm",version="1"} 3
trireme_requests_running{model="tensorrt_llm",version="2"} 1
trireme_requests_running{model="tensorrt_llm",version="9"} 40
trireme_requests_running{version="1",model="code_tensorrt_llm"} 5.000000
trireme_requests_waiting{model="tensorrt_llm",version="1"} 2
trireme_kv_cache_usage_fraction{model="tensorrt_llm",version="1"} 0.25
trireme_kv_cache_usage_fraction{model="tensorrt_llm",version="2"} 0.75
trireme_queue_requests{class="batch",model="tensorrt_llm",version="1"} 7
nv_inference_count{model="tensorrt_llm",version="1"} 100
"""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def servers(clock: ManualClock) -> list[Server]:
    return [Server(name, NO_CLIENT, [MODEL], clock) for name in "abc"]


def tell(server: Server, running: float, waiting: float = 0.0, kv_usage: float = 0.0) -> None:
    """Let a server tell its load at two looks, at a moment of the test's clock."""
    load = {engine_of(MODEL): EngineLoad(running, waiting, kv_usage)}
    for _ in range(2):
        server.note_load(load, at_s=100.0, num_own=server.num_running)


def conversation(num_pieces: int) -> list[int]:
    message: dict[str, object] = {"role": "user", "content": "y" * (256 * num_pieces - 100)}
    return numbers_of(GenerateRequest(messages=[message], max_tokens=1))


def test_a_page_tells_the_load_of_each_engine_without_releases_that_have_gone() -> None:
    assert engines_on(PAGE) == {
        "tensorrt_llm": EngineLoad(running=4, waiting=2, kv_usage=0.75),
        "code_tensorrt_llm": EngineLoad(running=5, waiting=0, kv_usage=0),
    }
    assert engines_on(b"<html>no page</html>") == {}


@pytest.mark.parametrize("figure", ["many", "NaN", "+Inf"])
def test_a_figure_that_is_no_number_is_no_figure(figure: str) -> None:
    page = f'trireme_requests_running{{model="tensorrt_llm",version="1"}} {figure}\n'
    with pytest.raises(ValueError, match=figure.strip("+")):
        engines_on(page.encode())


@pytest.mark.parametrize(
    ("model", "engine"),
    [
        ("ensemble", "tensorrt_llm"),
        ("tensorrt_llm_bls", "tensorrt_llm"),
        ("code_ensemble", "code_tensorrt_llm"),
        ("code_tensorrt_llm_bls", "code_tensorrt_llm"),
    ],
)
def test_each_model_has_its_engine(model: str, engine: str) -> None:
    assert engine_of(model) == engine


def test_others_have_what_is_not_the_gateways_own_and_its_own_are_those_of_now(servers: list[Server]) -> None:
    servers[0].num_running = 2
    for server, running in zip(servers, (19, 3, 0), strict=True):
        tell(server, running, waiting=1)
    servers[0].num_running = 5  # three more since
    # Others have 18, 4 and 1; up to half as many more than 1, and four, are chance.
    assert [load.requests for load in loads_of(servers, MODEL)] == [5 + 18 - 5.5, 0, 0]
    servers[0].num_running = 0  # all of them have ended since
    assert loads_of(servers, MODEL)[0].requests == 12.5


def test_who_waits_at_one_look_alone_may_have_waited_for_a_step_to_end(servers: list[Server]) -> None:
    tell(servers[0], running=1)
    load = {"tensorrt_llm": EngineLoad(running=1, waiting=5)}
    servers[0].note_load(load, at_s=100.0, num_own=0)
    assert loads_of(servers, MODEL)[0].queue == 0
    servers[0].note_load(load, at_s=100.0, num_own=0)
    assert loads_of(servers, MODEL)[0].queue == 5


def test_requests_that_a_server_has_not_told_of_yet_are_no_less_than_the_gateways_own(servers: list[Server]) -> None:
    servers[0].num_running = 9
    tell(servers[0], running=1)  # eight are on their way
    assert loads_of(servers, MODEL)[0].requests == 9


def test_a_server_that_tells_nothing_counts_as_the_others_on_average(servers: list[Server]) -> None:
    tell(servers[0], running=0, waiting=2, kv_usage=0.99)
    tell(servers[1], running=40)
    servers[2].num_running = 1
    assert loads_of(servers, MODEL)[2] == Load(requests=1 + 21 - 7, queue=1, kv_usage=0)


def test_old_figures_are_not_used_and_where_all_are_old_the_gateways_own_requests_count(
    servers: list[Server], clock: ManualClock
) -> None:
    tell(servers[0], running=20)
    tell(servers[1], running=0)
    clock.now_s += FRESH_S
    assert [load.requests for load in loads_of(servers, MODEL)] == [16, 0, 6]
    clock.now_s += 0.01
    servers[1].num_running = 1
    assert [load.requests for load in loads_of(servers, MODEL)] == [0, 1, 0]
    assert choose(servers, [], model=MODEL).url == "a"


def test_a_request_goes_where_others_have_the_fewest(servers: list[Server]) -> None:
    for server, running in zip(servers, (20, 2, 12), strict=True):
        tell(server, running)
    assert choose(servers, [], model=MODEL).url == "b"
    servers[1].num_running = 6  # that this gateway has sent since
    assert choose(servers, [], model=MODEL).url == "c"


def test_of_servers_with_as_many_requests_the_one_with_the_shorter_queue_is_taken(servers: list[Server]) -> None:
    for server, (running, waiting) in zip(servers, ((4, 4), (8, 0), (5, 3)), strict=True):
        tell(server, running, waiting)
    assert choose(servers, [], model=MODEL).url == "b"


def test_a_conversation_leaves_a_server_that_others_have_loaded(servers: list[Server]) -> None:
    numbers = conversation(16)
    servers[1].prefixes.add(numbers)
    tell(servers[0], running=2)
    tell(servers[2], running=2)
    tell(servers[1], running=11)  # seven of them may be chance
    assert choose(servers, numbers, model=MODEL).url == "b"
    tell(servers[1], running=12)
    assert choose(servers, numbers, model=MODEL).url != "b"


@pytest.mark.parametrize(("num_pieces", "waiting"), [(1, 1), (8, 2), (16, 3), (32, 5)])
def test_a_conversation_waits_for_its_cache_as_long_as_it_is_worth(
    servers: list[Server], num_pieces: int, waiting: int
) -> None:
    numbers = conversation(num_pieces)
    assert len(numbers) == num_pieces
    servers[1].prefixes.add(numbers)
    for server in servers:
        tell(server, running=8)
    tell(servers[1], running=6, waiting=waiting)
    assert choose(servers, numbers, model=MODEL).url == "b"
    tell(servers[1], running=6, waiting=waiting + 1)
    assert choose(servers, numbers, model=MODEL).url != "b"


def test_a_server_whose_kv_cache_is_full_is_passed_over_unless_all_are(servers: list[Server]) -> None:
    numbers = conversation(16)
    servers[1].prefixes.add(numbers)
    tell(servers[0], running=3, kv_usage=0.5)
    tell(servers[2], running=4, kv_usage=0.5)
    tell(servers[1], running=1, kv_usage=0.89)
    assert choose(servers, numbers, model=MODEL).url == "b"
    tell(servers[1], running=1, kv_usage=0.9)
    assert choose(servers, numbers, model=MODEL).url == "a"
    assert choose(servers, [], model=MODEL).url == "a"
    for server in servers:
        tell(server, running=1, kv_usage=0.95)
    assert choose(servers, numbers, model=MODEL).url == "b"


def test_queue_and_cache_are_those_of_the_model_that_is_asked_and_requests_those_of_all(servers: list[Server]) -> None:
    busy = {"code_tensorrt_llm": EngineLoad(8, 30, 1.0), "tensorrt_llm": EngineLoad(1, 0, 0.1)}
    servers[0].note_load(busy, at_s=100.0, num_own=0)
    for server in servers[1:]:
        server.note_load({"tensorrt_llm": EngineLoad(1, 0, 0.1)}, at_s=100.0, num_own=0)
    assert loads_of(servers, MODEL)[0] == Load(39 - 5.5, 0, 0.1)
    assert loads_of(servers, "code_ensemble")[0] == Load(39 - 5.5, 30, 1.0)
