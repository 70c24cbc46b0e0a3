# SPDX-License-Identifier: Apache-2.0
"""The server of a rollout by its folder or its address: what goes together, and where its rollouts are kept."""

from pathlib import Path
from typing import Any

import pytest
from remote_site import RemoteSite
from rollout_command import rollout

from clients.remote_control import RemoteControl
from clients.rollout.local_server import Control
from clients.rollout.records.rollout_plan import Plan
from clients.rollout.records.store import Store
from clients.rollout.server_controls import ServerControls
from clients.rollout.server_place import ServerPlace, folder_of, second_place, server_place
from clients.server_control import ServerControl
from trireme.base.errors import RequestError, Unavailable

URL = "https://gpu-3:8004"


def tell(_: str) -> None:
    pass


def test_a_folder_is_asked_by_its_socket_and_an_address_over_https(tmp_path: Path) -> None:
    assert isinstance(only(server_place(str(tmp_path), None, None).controls(tell)), ServerControl)
    place = server_place(URL, Path("ca.crt"), Path("key.txt"))
    assert isinstance(only(place.controls(tell)), RemoteControl)
    assert place == ServerPlace(
        Path("build/gpu-3-8004"), URL, str(Path("ca.crt").absolute()), str(Path("key.txt").absolute())
    )


def test_each_address_has_a_folder_of_its_own() -> None:
    assert folder_of("build/chat") == Path("build/chat")
    assert folder_of(f"{URL}/") == Path("build/gpu-3-8004")
    assert folder_of("https://[fd00::3]:8004") == Path("build/fd00__3-8004")


@pytest.mark.parametrize(
    ("server", "files", "said"),
    [
        ("build/chat", {"ca_file": Path("ca")}, "--server-ca-file is for --server https://HOST:PORT"),
        (None, {"token_file": Path("key")}, "--server-token-file is for --server https://HOST:PORT"),
        (URL, {}, f"--server {URL} answers nobody without a key; give --server-token-file"),
        ("http://gpu-3:8004", {"token_file": Path("key")}, "has no TLS"),
        ("http://127.0.0.1:8004", {"ca_file": Path("ca"), "token_file": Path("key")}, "--server-ca-file is for https"),
        ("https://gpu-3", {"token_file": Path("key")}, "https://HOST:PORT with the port of"),
    ],
)
def test_what_does_not_go_together_is_refused(server: str | None, files: dict[str, Path], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        server_place(server, files.get("ca_file"), files.get("token_file"))


def test_replicas_are_named_one_by_one_or_are_behind_one_name() -> None:
    key = Path("key.txt")
    several = server_place("https://gpu-3:8004,https://gpu-4:8005/", None, key)
    assert (several.folder, several.name) == (Path("build/gpu-3-8004"), "https://gpu-3:8004,https://gpu-4:8005")
    controls = several.controls(tell)
    assert not controls.is_one
    assert list(controls.all()) == ["https://gpu-3:8004", "https://gpu-4:8005"]
    assert controls.all() == controls.all()
    for name, is_one in (("localhost", None), ("nobody.invalid", None), ("gpu-3", True)):
        assert server_place(f"https://{name}:8004", None, key, is_one=is_one).controls(tell).is_one
    assert not server_place("https://localhost:8004", None, key, is_one=False).controls(tell).is_one
    with pytest.raises(RequestError, match="--server names an address twice"):
        server_place(f"{URL},{URL}/", None, key)
    assert folder_of("https://gpu-3:8004,https://gpu-4:8005") == several.folder


@pytest.mark.parametrize("server", [f"{URL},gpu-4:8004", f"{URL},", f"{URL},build/chat"])
def test_replicas_that_are_named_wrongly_are_refused(server: str) -> None:
    with pytest.raises(RequestError, match="--server must be the address"):
        server_place(server, None, Path("key.txt"))


def only(controls: ServerControls) -> Control:
    assert controls.is_one
    [control] = controls.all().values()
    return control


def said_by(capsys: pytest.CaptureFixture[str]) -> str:
    found = capsys.readouterr()
    return " ".join((found.out + found.err).split())


def test_commands_find_a_rollout_by_its_server_s_address_or_as_the_only_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = Plan(candidate=2, stable=1, release={"release": 2}, salt="s", server_url=URL)
    with Store(Path("build/gpu-3-8004/rollouts.sqlite")) as store:
        store.begin("chat", plan.text(), why="a test")
    for options in (["--server", URL], [], ["--server", "build/gpu-3-8004"]):
        assert rollout("status", *options) == 0
        assert "rollout 1 of chat" in said_by(capsys)
    assert rollout("pause", "--server", "https://gpu-4:8004") == 2
    assert "there is no store of rollouts build/gpu-4-8004" in said_by(capsys)
    assert rollout("status", "--server", "https://gpu-4") == 2
    assert "https://HOST:PORT" in said_by(capsys)


def test_a_rollout_goes_on_where_its_plan_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    site = RemoteSite(tmp_path)
    asked: list[str] = []

    def refuse(question: dict[str, Any], _: object) -> dict[str, Any]:
        asked.append(str(question["rollout"]))
        raise RequestError("it is somebody else's", field="server")

    api = site.serve({"steer": refuse})
    url = f"http://127.0.0.1:{api.port}"
    plan = Plan(
        candidate=2, stable=1, release={"release": 2}, salt="s", server_url=url, server_token_file=str(site.keys)
    )
    with Store(Path(f"build/127.0.0.1-{api.port}/rollouts.sqlite")) as store:
        store.begin("chat", plan.text(), why="a test")
    for options in ([], ["--server", url]):
        assert rollout("run", *options) != 0
        assert "it is somebody else's" in said_by(capsys)
    assert asked == ["s", "s"]
    wrong = tmp_path / "wrong"
    wrong.write_text("a-wrong-key-0123456789\n")
    assert rollout("run", "--server-token-file", str(wrong)) == 2
    assert f"it got the key of --server-token-file {wrong}" in said_by(capsys)
    site.close()


def test_the_second_server_is_asked_with_the_first_one_s_authority_and_key_where_none_is_named() -> None:
    first = server_place(URL, Path("ca.crt"), Path("key.txt"))
    second = second_place("https://gpu-4:8004", None, None, first)
    assert second[1:] == ("https://gpu-4:8004", first.ca_file, first.token_file, "--second-server", None)
    own = second_place("https://gpu-4:8004", Path("own.crt"), Path("own.txt"), first)
    assert own[2:4] == (str(Path("own.crt").absolute()), str(Path("own.txt").absolute()))
    assert second_place("http://127.0.0.1:8004", None, None, first).ca_file == ""
    here = second_place("build/chat", None, None, first)
    assert (here.url, here.token_file, here.name) == ("", "", str(Path("build/chat").absolute()))


@pytest.mark.parametrize(
    ("server", "files", "said"),
    [
        ("build/b", {"ca_file": Path("ca")}, "--second-server-ca-file is for --second-server https://HOST:PORT"),
        (URL, {}, f"--second-server {URL} answers nobody without a key; give --second-server-token-file"),
        ("http://gpu-3:8004", {"token_file": Path("key")}, "--second-server http://gpu-3:8004 has no TLS"),
        ("https://gpu-3", {"token_file": Path("key")}, "--second-server must be the address"),
    ],
)
def test_what_does_not_go_together_is_refused_by_the_second_server_s_options(
    server: str, files: dict[str, Path], said: str
) -> None:
    with pytest.raises(RequestError, match=said) as refusal:
        second_place(server, files.get("ca_file"), files.get("token_file"), ServerPlace(Path("build/a")))
    assert str(refusal.value.facts["field"]).startswith("second_server")


def test_a_rollout_of_two_servers_goes_on_at_both_or_at_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    site = RemoteSite(tmp_path)
    asked: list[tuple[str, bool]] = []

    def steer(name: str, refusal: Exception | None) -> dict[str, Any]:
        def handle(question: dict[str, Any], _: object) -> dict[str, Any]:
            asked.append((name, bool(question["lease_s"])))
            if refusal is not None:
                raise refusal
            return {}

        return {"steer": handle}

    first = site.serve(steer("first", None))
    second = site.serve(steer("second", Unavailable("this server is steered by another", reason="steered")))
    url, second_url = (f"http://127.0.0.1:{each.port}" for each in (first, second))
    access = {"server_url": url, "server_token_file": str(site.keys), "second_server": second_url}
    plan = Plan(candidate=2, stable=1, release={"release": 2}, salt="s", **access)  # type: ignore[arg-type]
    with Store(Path("rollouts.sqlite")) as store:
        store.begin("chat", plan.text(), why="a test")
    assert rollout("run", "--store", "rollouts.sqlite") != 0
    assert "the second server: this server is steered by another" in said_by(capsys)
    assert asked == [("first", True), ("second", True), ("first", False)]
    wrong = tmp_path / "wrong"
    wrong.write_text("a-wrong-key-0123456789\n")
    assert rollout("run", "--store", "rollouts.sqlite", "--second-server-token-file", str(wrong)) == 2
    assert f"it got the key of --second-server-token-file {wrong}" in said_by(capsys)
    site.close()


def test_a_rollout_of_one_server_goes_on_at_no_second_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = Plan(candidate=2, stable=1, release={"release": 2}, salt="s")
    with Store(Path("rollouts.sqlite")) as store:
        store.begin("chat", plan.text(), why="a test")
    options = ["--server", str(tmp_path), "--store", "rollouts.sqlite", "--second-server", str(tmp_path)]
    assert rollout("run", *options) != 0
    assert "the rollout has no second server" in said_by(capsys)
