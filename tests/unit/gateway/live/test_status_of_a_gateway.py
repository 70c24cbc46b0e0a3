# SPDX-License-Identifier: Apache-2.0
"""The status of a gateway over HTTP: for admins, and what nobody has connected is said so, and is never 0."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from gateway_before_scripts import wait_until
from key_places import bearer
from kserve_server import KServeServer, response, story
from metrics_page import metrics_page
from running_gateway import RunningGateway

from clients.rollout.records.open_database import is_there
from clients.rollout.records.rollout_plan import Plan
from clients.rollout.records.state import Phase
from clients.rollout.records.store import Store
from gateway.access.caller import Role
from gateway.access.key_record import NewKey
from gateway.access.key_store import KeyStore
from gateway.served_models import ServedModel
from trireme.base.store_place import PostgresPlace, StorePlace

if TYPE_CHECKING:
    from postgres_here import PostgresServer

PLAN = Plan(candidate=2, stable=1, release={}, salt="s", shares=(0.25, 1.0), step_requests=10)
METRICS = """\
trireme_engine_up{model="tensorrt_llm",version="1"} 1
trireme_requests_running{model="tensorrt_llm",version="1"} 3
trireme_requests_waiting{model="tensorrt_llm",version="1"} 2
trireme_kv_cache_usage_fraction{model="tensorrt_llm",version="1"} 0.5
"""


def status_of(gateway: RunningGateway) -> Any:
    answer = gateway.call("GET", "/admin/status")
    assert answer.status == 200
    assert answer.headers["cache-control"] == "no-store"
    return answer.json


def test_what_is_not_connected_is_null_with_the_option_that_connects_it() -> None:
    with KServeServer(*story()) as server, RunningGateway(server.url) as gateway:
        found = status_of(gateway)
        assert found["servers"] == [
            {"url": server.url, "taking_requests_for": ["demo"], "running_requests": 0, "figures": None}
        ]
        assert found["rollouts"] is None
        assert found["connect_by"] == {"figures": "--metrics-url", "rollouts": "--rollouts"}
        server.is_ready = False
        assert status_of(gateway)["servers"][0]["taking_requests_for"] == []


def test_requests_are_counted_while_they_run_and_when_they_have_ended() -> None:
    go_on = threading.Event()
    script = [response("Once", num_output_tokens=2, num_input_tokens=4, release=7), go_on, *story()[1:]]
    with KServeServer(*script) as server, RunningGateway(server.url) as gateway:
        asking = threading.Thread(target=gateway.chat, kwargs={"stream": True})
        asking.start()
        wait_until(lambda: status_of(gateway)["servers"][0]["running_requests"] == 1)
        wait_until(lambda: max(status_of(gateway)["models"][0]["tokens_per_s"], default=0) > 0)
        go_on.set()
        asking.join()
        [model] = status_of(gateway)["models"]
        assert (model["running_requests"], model["ended_requests"], model["errors"]) == (0, 1, {})
        assert model["releases"] == {"7": 1}
        assert 0 < model["ttft_p50_s"] == model["ttft_p99_s"]
        gateway.chat(max_tokens=0)  # refused before it is asked for anything
        server.script = ("[UNAVAILABLE reason=queue_full] full",)
        gateway.chat()
        assert status_of(gateway)["models"][0]["errors"] == {"overloaded": 1}


def test_the_figures_of_two_servers_are_each_its_own() -> None:
    with (
        metrics_page(lambda: METRICS) as page,
        KServeServer(*story()) as one,
        KServeServer(*story()) as other,
        RunningGateway(one.url, other.url, metrics_urls=(page, "127.0.0.1:1")) as gateway,
    ):
        first, second = status_of(gateway)["servers"]
        [engine] = first["figures"]["engines"]
        assert (engine["model"], engine["release"], engine["is_up"]) == ("demo", 1, True)
        assert (engine["running_requests"], engine["waiting_requests"]) == (3, 2)
        assert engine["kv_cache_usage_fraction"] == 0.5
        assert second["url"] == other.url
        assert second["figures"]["engines"] == []
        assert "127.0.0.1:1" in second["figures"]["why_not"]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StorePlace:
    if request.param == "sqlite":
        return tmp_path / "rollouts.sqlite"
    server: PostgresServer = request.getfixturevalue("postgres")
    return PostgresPlace(server.url(server.new_database()), option="--rollouts")


def test_a_rollout_is_told_from_its_store_and_none_is_begun_by_looking(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.live.rollout_state._FRESH_S", 0.0)
    with KServeServer(*story()) as server, RunningGateway(server.url, rollouts=place) as gateway:
        assert status_of(gateway)["rollouts"] == {"why_not": "", "rollout": None}
        assert not is_there(place)
        with Store(place) as store:
            begun = store.begin("demo", msgspec.json.encode(PLAN).decode(), why="half the memory")
            store.enter(begun.id, Phase.RUNNING, why="it loads", step=0)
            found = status_of(gateway)["rollouts"]["rollout"]
            assert (found["id"], found["model"], found["mode"], found["phase"]) == (1, "demo", "canary", "running")
            assert (found["stable"], found["candidates"], found["share"]) == (1, [2], 0.25)
            assert (found["shares"], found["step"]) == ([0.25, 1.0], 0)
            assert (found["is_over"], found["is_driven"], found["verdict"]) == (False, False, "no data")
            with store.driving():
                assert status_of(gateway)["rollouts"]["rollout"]["is_driven"]
            store.enter(begun.id, Phase.PROMOTED, why="as fast")
        found = status_of(gateway)["rollouts"]["rollout"]
        assert (found["phase"], found["is_over"], found["reason"]) == ("promoted", True, "as fast")
        assert found["ended_at"] is not None


def test_a_store_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    place = tmp_path / "rollouts.sqlite"
    place.write_text("this is no database, and has more than a hundred bytes, " * 10)
    with KServeServer(*story()) as server, RunningGateway(server.url, rollouts=place) as gateway:
        found = status_of(gateway)["rollouts"]
        assert found["rollout"] is None
        assert str(place) in found["why_not"]


def test_the_status_is_for_admins(tmp_path: Path) -> None:
    with (
        KServeServer(*story()) as server,
        KeyStore(tmp_path / "keys.sqlite") as store,
        RunningGateway(server.url, models=(ServedModel("demo", "ensemble"),), keys=store) as gateway,
    ):
        admin = store.create(NewKey("ann", role=Role.ADMIN))
        user = store.create(NewKey("bob"))
        codes = [
            gateway.call("GET", "/admin/status", **headers).status
            for headers in ({}, {"Authorization": bearer(user)}, {"Authorization": bearer(admin)})
        ]
        assert codes == [401, 403, 200]
