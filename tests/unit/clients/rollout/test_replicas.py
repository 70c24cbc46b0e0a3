# SPDX-License-Identifier: Apache-2.0
"""A server of several replicas: all have to be there, serve the same, and do the same."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from certificates import Authority
from remote_site import RemoteSite

from clients.access import Access
from clients.remote_control import RemoteControl
from clients.rollout.local_server import Control, LocalServer
from clients.rollout.replicas import Replicas, server_of
from clients.rollout.server_controls import ServerControls, addresses_of, behind, num_addresses, one_control
from trireme.base.errors import AccessDenied, RequestError, ServerError, ServingError, Unavailable

RELEASE: dict[str, Any] = {"release": 1, "engine": {"provider": "simulated"}}


class Replica:
    """The control of a replica, which notes what it is asked, and refuses what it is to refuse."""

    def __init__(self, name: str, **model: object) -> None:
        self.name = name
        self.asked: list[str] = []
        self.refusals: dict[str, ServingError] = {}
        self.controller = ""
        self.model: dict[str, object] = {
            "name": "chat", "prefix": "", "release": 1, "canary": None, "on_trial": [], "releases": [RELEASE],
            "engine_pids": {"1": 21}, **model,
        }  # fmt: skip

    def ask(self, operation: str, **_: object) -> Mapping[str, object]:
        self.asked.append(operation)
        if operation in self.refusals:
            raise self.refusals[operation]
        if operation == "room":
            return {"why_not": ""}
        return {"server_id": self.name, "grpc": f"{self.name}:8001", "models": [self.model]}

    def seen_from_here(self, status: Mapping[str, object]) -> Mapping[str, object]:
        return status


def controls_of(*replicas: Replica, find: Callable[[], list[str]] | None = None) -> ServerControls:
    by_name = {each.name: each for each in replicas}
    return ServerControls(find or (lambda: list(by_name)), lambda name: cast("Control", by_name[name]))


def test_what_all_serve_is_the_server_s_status() -> None:
    found = Replicas(controls_of(Replica("a"), Replica("b"), Replica("c")), None).status()
    assert (found["release"], found["grpc"], found["num_replicas"]) == (1, "a:8001", 3)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (Replica("b", release=3), "do not serve the same: release is 1 at a and 3 at b; deploy one release on all"),
        (Replica("b", releases=[]), "releases is .* at a and \\[\\] at b"),
        (Replica("b", canary=2), "canary is null at a and 2 at b"),
    ],
)
def test_replicas_that_differ_are_refused_by_name(other: Replica, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        Replicas(controls_of(Replica("a"), other), None).status()


def test_a_server_that_is_named_twice_is_no_second_replica() -> None:
    twice = Replica("a")
    both = ServerControls(lambda: ("10.0.0.1", "fd00::1"), lambda _: cast("Control", twice))
    with pytest.raises(RequestError, match=r"10\.0\.0\.1 and fd00::1 are one server"):
        Replicas(both, None).status()


def test_a_change_is_made_at_all_and_whoever_refuses_is_named_before_one_that_is_away() -> None:
    replicas = [Replica(name) for name in "abc"]
    server = Replicas(controls_of(*replicas), None)
    server.add({"release": 2}, is_canary=True)
    server.promote(2)
    server.settle()
    server.remove(1, drain_timeout_s=1)
    assert [each.asked for each in replicas] == [["add", "promote", "settle", "remove"]] * 3
    replicas[0].refusals["add"] = Unavailable("gone", reason="restarting")
    replicas[2].refusals["add"] = ServerError("no memory")
    with pytest.raises(ServerError, match="replica c: no memory"):
        server.add({"release": 3}, is_canary=True)
    del replicas[2].refusals["add"]
    with pytest.raises(Unavailable, match="replica a: gone") as away:  # it is asked again
        server.add({"release": 3}, is_canary=True)
    assert away.value.facts["reason"] == "restarting"


def test_memory_has_to_be_there_at_all() -> None:
    replicas = [Replica(name) for name in "ab"]
    server = Replicas(controls_of(*replicas), None)
    assert server.why_no_room(RELEASE) == ""
    replicas[1].ask = lambda *_, **__: {"why_not": "2 GiB are missing"}  # type: ignore[method-assign]
    assert server.why_no_room(RELEASE) == "b: 2 GiB are missing"


def test_a_replica_that_is_replaced_is_another_life() -> None:
    there = ["a", "b"]
    server = Replicas(controls_of(Replica("a"), Replica("b"), Replica("c"), find=lambda: there), None)
    before, stable = server.lives(), server.stable_lives()
    assert before == {"a": {"server": "a"}, "b": {"server": "b"}}
    assert stable == {"a": {"server": "a", "1": 21}, "b": {"server": "b", "1": 21}}
    assert len(server.parts) == 2
    there[1] = "c"
    assert server.lives() != before


def test_a_server_of_one_process_is_asked_without_a_name() -> None:
    assert isinstance(server_of(one_control(cast("Control", Replica("a"))), None), LocalServer)
    assert isinstance(server_of(controls_of(Replica("a")), None), Replicas)


def test_as_many_addresses_as_replicas_have_to_be_there() -> None:
    found = ["10.0.0.1"]
    find = behind("chat-control", 8004, 2, lambda _, __: found)
    with pytest.raises(
        Unavailable, match=r"chat-control has 1 addresses now \(10.0.0.1\), and the rollout began with 2"
    ):
        find()
    found.append("10.0.0.2")
    assert find() == ["10.0.0.1", "10.0.0.2"]
    assert addresses_of("localhost", 80) in (["127.0.0.1"], ["::1"])
    assert (num_addresses("localhost", 80), num_addresses("nobody.invalid", 80)) == (1, 1)
    with pytest.raises(Unavailable, match=r"nobody\.invalid has no address"):
        addresses_of("nobody.invalid", 80)


@pytest.fixture
def site(tmp_path: Path) -> RemoteSite:
    return RemoteSite(tmp_path)


def test_an_address_of_a_name_is_asked_by_the_name_s_certificate(site: RemoteSite, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    pair = authority.issue("control", hosts=("chat-control.test",))
    status = {"grpc": "0.0.0.0:8001", "metrics": "http://localhost:8002/metrics", "grpc_access": {"is_tls": True}}
    api = site.serve({"status": lambda _, __: status}, cert_file=pair.cert, key_file=pair.key)
    access = Access(ca_file=str(authority.ca), token_file=str(site.keys))
    control = RemoteControl(f"https://chat-control.test:{api.port}", access, address="127.0.0.1")
    assert control.ask("status") == status
    seen = control.seen_from_here(status)
    assert (seen["grpc"], seen["metrics"]) == ("127.0.0.1:8001", "http://127.0.0.1:8002/metrics")
    assert seen["grpc_access"] == {
        "is_tls": True, "ca_file": str(authority.ca), "server_name": "chat-control.test",
    }  # fmt: skip
    other = RemoteControl(f"https://another.test:{api.port}", access, address="127.0.0.1")
    with pytest.raises(AccessDenied):
        other.ask("status")
    site.close()
