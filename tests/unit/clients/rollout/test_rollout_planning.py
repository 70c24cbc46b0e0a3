# SPDX-License-Identifier: Apache-2.0
"""The candidates of a rollout, from what names them; what is wrong is said before anything is begun."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from clients.rollout.planning import candidates, gpus_per_seat
from clients.rollout.records.rollout_plan import Mode, read_steps
from clients.rollout.second_server import plan_second_server, refuse_without_room, why_second_server
from clients.rollout.server_place import ServerPlace
from clients.rollout.two_servers import TwoServers
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.model_spec import as_release
from trireme.base.errors import RequestError, ServerError, ServingError, Unavailable
from trireme.commands import run_command


@pytest.fixture
def status() -> dict[str, Any]:
    """Return the status of a server that serves release 1 and holds release 4."""
    spec = DeploymentSpec.of_one(
        name="d", tokenizer={"dir": Path("/t")}, engine={"provider": "simulated", "max_num_seqs": 8}
    )
    stable = as_release(spec.model).model_dump(mode="json")
    return {"name": "d", "release": 1, "releases": [stable, {**stable, "release": 4}], "canary": None}


def written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_each_candidate_has_a_number_of_its_own(tmp_path: Path, status: Mapping[str, Any]) -> None:
    files = [written(tmp_path, f"{seed}.yaml", f"engine: {{seed: {seed}}}") for seed in (2, 3)]
    found = candidates([*files, "4"], status, mode=Mode.AB, above=6)
    assert [each["release"] for each in found] == [7, 8, 4]
    assert [each["engine"]["seed"] for each in found] == [2, 3, 0]


@pytest.mark.parametrize(
    ("named", "mode", "reason"),
    [
        (["a.yaml", "b.yaml"], Mode.CANARY, "tries 1 release out, got 2: .*--mode ab takes several"),
        (["4", "4"], Mode.AB, "release 4 is named twice"),
        (["1"], Mode.CANARY, "release 1 is the stable one already"),
        (["9"], Mode.CANARY, "has no release 9; it has: 1, 4"),
        ([str(n) for n in range(9)], Mode.AB, "tries 8 releases out, got 9"),
    ],
)
def test_what_cannot_be_tried_out_is_said(status: Mapping[str, Any], named: list[str], mode: Mode, reason: str) -> None:
    with pytest.raises(ServingError, match=reason):
        candidates(named, status, mode=mode, above=0)


def test_a_release_below_the_stable_one_is_refused(status: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"release 1 is older than the stable one \(4\).*name its folder or file"):
        candidates(["1"], {**status, "release": 4}, mode=Mode.CANARY, above=0)


def test_seats_share_the_gpus_of_their_engine() -> None:
    assert gpus_per_seat({"engine": {"provider": "x", "max_num_seqs": 16, "tp_size": 4, "pp_size": 2}}) == 0.5
    assert gpus_per_seat({"engine": {"max_num_seqs": 8}}) == 1 / 8


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--mode", "ab", "--steps", "5,100"], "--steps is for --mode canary or shadow, and the mode is ab"),
        (["--shares", "50,50"], "--shares is for --mode ab, and the mode is canary"),
        (["--mode", "ab", "--second-server", "build/b"], "--second-server is for --mode canary or shadow"),
        (["--apart"], "--apart is for --second-server"),
        (["--second-url", "b:8001"], "--second-url is for --second-server"),
        (["--second-server-ca-file", "ca.crt"], "--second-server-ca-file is for --second-server"),
        (["--second-server-token-file", "key"], "--second-server-token-file is for --second-server"),
        (["--weights", "envoy:r.yaml"], "--weights is for --second-server"),
        (["--mode", "shadow", "--second-server", "b", "--weights", "envoy:r.yaml"], "--weights is for --mode canary"),
        (["--envoy-admin", "a:9901"], "--envoy-admin is for --weights"),
        (["--stable-service", "chat"], "--stable-service is for --weights"),
        (["--prompts-at-a-time", "4"], "--prompts-at-a-time is for --prompts"),
        (["--max-copies", "4"], "--max-copies is for --mode shadow, and the mode is canary"),
        (["--mode", "ab", "--step-requests", "5"], "--step-requests is for --mode canary or shadow"),
        (["--mode", "shadow", "--keep-old"], "--keep-old is for --mode canary or ab"),
        (["--mode", "other"], "other"),
    ],
)
def test_options_of_another_mode_are_refused(
    options: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run_command("rollout", ["start", "candidate.yaml", *options])
    assert caught.value.code == 2
    assert reason in " ".join(capsys.readouterr().err.split())


class Server:
    """A server that records what was asked of it."""

    def __init__(self, fails: ServingError | None = None) -> None:
        self.fails = fails
        self.actions: list[tuple[object, ...]] = []

    def replace(self, release: Mapping[str, object], *, drain_timeout_s: float) -> None:
        self.actions.append(("replace", release["tag"], drain_timeout_s))

    def try_out(self, number: int) -> None:
        self.actions.append(("try_out", number))
        if self.fails is not None and number == 2:
            raise self.fails

    def stable_lives(self) -> Mapping[str, object]:
        return {"2": 7}


def two_servers(first: Server, second: Server) -> TwoServers:
    home, stable = {"release": 2, "tag": "home"}, {"release": 1, "tag": "old"}
    return TwoServers(first, second, home, stable, drain_timeout_s=9)  # type: ignore[arg-type]


def test_a_first_server_whose_candidate_does_not_answer_serves_the_old_release_again() -> None:
    first = Server(ServerError("no text"))
    with pytest.raises(ServerError, match="no text"):
        two_servers(first, Server()).promote(2)
    assert first.actions == [("replace", "home", 9), ("try_out", 2), ("replace", "old", 0), ("try_out", 1)]


def test_a_first_server_that_is_away_is_asked_again() -> None:
    first = Server(Unavailable("it is being started", reason="starting"))
    with pytest.raises(Unavailable):
        two_servers(first, Server()).promote(2)
    assert first.actions == [("replace", "home", 9), ("try_out", 2)]


def test_two_servers_each_get_the_candidate_in_their_own_place() -> None:
    first, second = Server(), Server()
    both = two_servers(first, second)
    both.add({"release": 2, "tag": "away"}, is_canary=True)
    both.try_out(2)
    assert (first.actions, second.actions) == ([], [("replace", "away", 9), ("try_out", 2)])
    assert both.lives() == {"2": 7}
    both.promote(2)
    both.settle()
    both.remove(1, drain_timeout_s=9)
    assert first.actions == [("replace", "home", 9), ("try_out", 2)]
    assert len(second.actions) == 2


class Asked:
    """A server that says what it serves, and that it has no room."""

    def __init__(self, status: dict[str, Any], grpc: str) -> None:
        self._status = {**status, "grpc": grpc}

    def status(self) -> dict[str, Any]:
        return self._status

    def why_no_room(self, release: Mapping[str, Any]) -> str:
        return f"release {release['release']} takes 9 GiB"


def apart(named: str, first: dict[str, Any], second: dict[str, Any], **more: Any) -> tuple[dict[str, Any], Any]:
    servers = Asked(first, "a:1"), Asked(second, "b:1")
    settings = {"above": 0, "is_keeping_old": False, "tell": print, "place": ServerPlace(Path("/b")), **more}
    return plan_second_server([named], *servers, **settings)  # type: ignore[arg-type]


def test_each_server_has_a_candidate_of_its_own_under_one_number(tmp_path: Path, status: dict[str, Any]) -> None:
    elsewhere = {**status, "releases": [{**each, "release": each["release"] + 6} for each in status["releases"]]}
    elsewhere["release"] = 7
    name = written(tmp_path, "c.yaml", "engine: {seed: 5}")
    release, fields = apart(name, status, elsewhere)
    assert release["release"] == fields["home_release"]["release"] == 11
    assert release["engine"]["seed"] == fields["home_release"]["engine"]["seed"] == 5
    assert fields["home_stable"]["release"] == 1
    assert (fields["second_server"], fields["second_url"]) == ("/b", "b:1")
    assert apart(name, status, elsewhere, above=20)[0]["release"] == 21
    remote = ServerPlace(Path("build/b-8004"), "https://b:8004")
    assert apart(name, status, elsewhere, place=remote)[1]["second_server"] == "https://b:8004"


def test_clients_are_sent_to_a_name_that_the_second_servers_certificate_has(
    tmp_path: Path, status: dict[str, Any]
) -> None:
    name = written(tmp_path, "c.yaml", "engine: {seed: 5}")
    tls = {**status, "grpc_access": {"ca_file": "c"}}
    with pytest.raises(RequestError, match=r"sent to b:1, where /b listens, .* is for x, y\.z; give") as refused:
        apart(name, status, {**tls, "grpc_names": ["x", "y.z"]})
    assert refused.value.facts["field"] == "second_url"
    _, behind = apart(name, status, {**tls, "grpc_names": ["x", "y.z"]}, is_behind_router=True)
    assert behind["second_url"] == "grpcs://b:1", "no client goes by it"
    for second_url, names in ((None, ["x", "b"]), ("y.z:8", ["x"]), ("grpcs://y.z:8", ["x"])):
        _, fields = apart(name, status, {**tls, "grpc_names": names}, url=second_url)
        assert fields["second_url"] == ("grpcs://b:1" if second_url is None else "grpcs://y.z:8")


def test_what_takes_one_server_is_said(tmp_path: Path, status: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="with --second-server name its folder or file"):
        apart("4", status, status)
    with pytest.raises(RequestError, match="--keep-old needs room for both"):
        apart(written(tmp_path, "c.yaml", "engine: {seed: 5}"), status, status, is_keeping_old=True)


def test_without_a_second_server_what_has_no_room_is_refused(status: dict[str, Any]) -> None:
    server: Any = Asked(status, "a:1")
    refuse_without_room(server, [{"release": 4}])  # it is loaded
    with pytest.raises(RequestError, match="release 2 takes 9 GiB; make room, or name a server of its own"):
        refuse_without_room(server, [{"release": 2}])


def test_the_memory_decides_or_who_asks(status: dict[str, Any]) -> None:
    first: Any = Asked(status, "a:1")
    assert why_second_server(first, {"release": 2}, is_forced=False) == "release 2 takes 9 GiB"
    assert why_second_server(first, {"release": 2}, is_forced=True) == "it was asked for"


def test_only_a_canary_ends_with_all_requests() -> None:
    assert read_steps("5,10", is_whole=False) == (0.05, 0.1)
    for text in ("5,10", "", "10,5,100", "0,100", "50,200", "100"):
        with pytest.raises(RequestError, match="growing percentages that end with 100 and begin with less, such as"):
            read_steps(text)
    with pytest.raises(RequestError, match="end with 100 or less"):
        read_steps("50,200", is_whole=False)
