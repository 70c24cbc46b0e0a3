# SPDX-License-Identifier: Apache-2.0
"""A server of several replicas: all have to be there, serve the same, and do the same."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from certificates import Authority
from remote_site import RemoteSite

from clients import remote_control
from clients.access import Access
from clients.control_address import addresses_of
from clients.remote_control import RemoteControl
from clients.rollout.local_server import Control, LocalServer
from clients.rollout.replicas import Replicas, server_of
from clients.rollout.second_server import check_second, plan_second_server
from clients.rollout.server_controls import ServerControls, one_control
from clients.rollout.server_place import ServerPlace
from trireme.base.errors import AccessDenied, RequestError, ServerError, ServingError, SpecError, Unavailable

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
    by_name = {"a": Replica("a"), "b": Replica("b"), "also b": Replica("b")}
    three = ServerControls(lambda: list(by_name), lambda name: cast("Control", by_name[name]))
    with pytest.raises(RequestError, match="b are one server"):
        Replicas(three, None).status()


def test_a_change_is_made_at_all_and_whoever_refuses_is_named_before_one_that_is_away() -> None:
    replicas = [Replica(name) for name in "abc"]
    server = Replicas(controls_of(*replicas), None)
    server.add({"release": 2}, is_canary=True)
    server.promote(2)
    server.settle()
    server.remove(1, drain_timeout_s=1)
    changes = [[one for one in each.asked if one != "status"] for each in replicas]
    assert changes == [["add", "promote", "settle", "remove"]] * 3
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


def test_the_addresses_of_a_name_are_of_one_family() -> None:
    assert addresses_of("localhost", 80) in (["127.0.0.1"], ["::1"])
    for name in ("nobody.invalid", "a..b", f"{'a' * 70}.test"):
        with pytest.raises(Unavailable, match="has no address"):
            addresses_of(name, 80)


def test_a_server_of_one_process_whose_name_gets_a_second_address_is_asked_no_more(
    site: RemoteSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = site.control(site.serve({"status": lambda _, __: {"is": "there"}}))
    assert control.ask("status") == {"is": "there"}
    monkeypatch.setattr(remote_control, "addresses_of", lambda *_: ["10.0.0.1", "10.0.0.2"])
    with pytest.raises(
        Unavailable, match=r"has 2 addresses now \(10.0.0.1, 10.0.0.2\), and the rollout began with one"
    ):
        control.ask("status")
    site.close()


class Model:
    """A model of a replica, which takes releases, promotes and removes them as a server does."""

    def __init__(self, name: str, *numbers: int) -> None:
        self.replica = Replica(name)
        self.release, self.numbers = numbers[0], list(numbers)
        self.replica.ask = self._ask  # type: ignore[method-assign]

    def _ask(self, operation: str, **question: Any) -> Mapping[str, object]:
        refusal = self.replica.refusals.get(operation)
        if refusal is not None:
            raise refusal
        number = int(question.get("number") or 0)
        match operation:
            case "add":
                self.numbers.append(int(question["release"]["release"]))
            case "promote" if number not in self.numbers:
                raise SpecError(f"chat has no release {number}", field="release", value=number)
            case "promote":
                self.release = number
            case "remove" if number == self.release:
                raise SpecError(f"release {number} is the stable one; promote another first", field="release")
            case "remove" if number in self.numbers:
                self.numbers.remove(number)
        releases = [{"release": each, "engine": {}} for each in self.numbers]
        model = {**self.replica.model, "release": self.release, "releases": releases}
        return {"server_id": self.replica.name, "grpc": "", "models": [model]}


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> list[Model]:
    monkeypatch.setattr(LocalServer, "try_out", lambda _, __: None)
    return [Model(name, 1, 2) for name in "abc"]


def server_of_models(models: list[Model]) -> Replicas:
    return Replicas(controls_of(*(each.replica for each in models)), None)


def test_a_promotion_that_a_replica_refuses_is_taken_back_at_the_others(three: list[Model]) -> None:
    server = server_of_models(three)
    three[2].replica.refusals["promote"] = ServerError("no")
    with pytest.raises(ServerError, match="replica c: no"):
        server.promote(2)
    assert [each.release for each in three] == [2, 2, 1]
    del three[2].replica.refusals["promote"]
    server.remove(2, drain_timeout_s=0)
    assert [(each.release, each.numbers) for each in three] == [(1, [1])] * 3


def test_a_replica_that_came_without_the_candidate_gets_what_the_others_serve(three: list[Model]) -> None:
    three[1] = Model("b", 1)
    server_of_models(three).promote(2)
    three[2] = Model("c", 1)  # and another one, once all were promoted
    server = server_of_models(three)
    server.remove(1, drain_timeout_s=0)
    assert [(each.release, each.numbers) for each in three] == [(2, [2])] * 3


def test_the_stable_release_of_all_is_not_removed(three: list[Model]) -> None:
    with pytest.raises(SpecError, match="release 1 is the stable one"):
        server_of_models(three).remove(1, drain_timeout_s=0)


def test_replicas_that_come_while_the_candidate_is_loaded_end_the_rollout(three: list[Model]) -> None:
    there = ["a", "b"]
    server = Replicas(controls_of(*(each.replica for each in three), find=lambda: there), None)
    assert len(server.parts) == 2
    server.add({"release": 3}, is_canary=True)
    there[1] = "c"
    said = "replicas came or went meanwhile: a, c are there, and there were a, b"
    with pytest.raises(ServerError, match=said):
        server.add({"release": 3}, is_canary=True)
    with pytest.raises(ServerError, match=said):
        server.try_out(3)
    server.remove(3, drain_timeout_s=0)
    assert [each.numbers for each in three] == [[1, 2], [1, 2, 3], [1, 2]]


def test_a_second_server_that_has_a_replica_of_the_first_is_refused() -> None:
    first, second = ({**status_of("a"), "server_ids": ids} for ids in (["a", "b"], ["c", "b"]))
    with pytest.raises(RequestError, match="is the first server itself, or has a replica of it"):
        check_second(first, second, "https://b:8004")
    check_second(first, {**second, "server_ids": ["c"]}, "https://c:8004")


def status_of(name: str) -> dict[str, Any]:
    return LocalServer(cast("Control", Replica(name)), None).status()


def test_clients_are_sent_to_no_single_replica_of_a_second_server(tmp_path: Path) -> None:
    first, second = (Replicas(controls_of(Replica(f"{name}1"), Replica(f"{name}2")), None) for name in "ab")
    place = ServerPlace(tmp_path, "https://b:8004")
    with pytest.raises(RequestError, match="one of the 2 replicas of https://b:8004; give the address of all, as --s"):
        plan_second_server(["x.yaml"], first, second, place, above=1, is_keeping_old=False, tell=lambda _: None)


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
