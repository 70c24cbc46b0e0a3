# SPDX-License-Identifier: Apache-2.0
"""The weights in Envoy's routes file: who may set them, and when Envoy goes by them."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from clients.rollout.export.envoy_routes import routes_file
from clients.rollout.weights.envoy_file import EnvoyFile
from clients.rollout.weights.weights import Claim, RouteTaken
from trireme.base.errors import SpecError, Unavailable
from trireme.base.free_ports import free_ports
from trireme.commands import run_command

OWNER = "rollout 3 (a1)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "routes.yaml"


@pytest.fixture
def file(path: Path) -> EnvoyFile:
    return EnvoyFile(path, salt="a1")


def test_the_file_is_what_the_export_writes_and_says_who_set_it(path: Path, file: EnvoyFile) -> None:
    file.set(0, OWNER)  # Envoy does not start without it
    file.set(500, OWNER)
    text = path.read_text()
    assert text.startswith("# Weights of rollout 3 (a1): 500 of 10000 to the candidate\n")
    assert yaml.safe_load(text) == routes_file(0.05, salt="a1")
    present = file.read()
    assert (present.weight, present.claim) == (500, Claim(OWNER, 500))
    assert file.wait(500, timeout_s=0), "without an admin address nothing more can be known"


def test_what_is_set_already_is_not_written_again(path: Path, file: EnvoyFile) -> None:
    file.set(0, OWNER)
    file.set(500, OWNER)
    written = path.stat()
    EnvoyFile(path, salt="a1").set(500, OWNER)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)


def test_an_exported_file_is_taken_where_the_candidate_has_nothing(path: Path, file: EnvoyFile) -> None:
    for share, is_taken in (("5", False), ("0", True)):
        with pytest.raises(SystemExit):
            run_command("rollout", ["export", "--format", "envoy-routes", "--share", share, "--out", str(path)])
        with contextlib.nullcontext() if is_taken else pytest.raises(RouteTaken, match="this rollout has set none"):
            file.set(0, OWNER)


def test_a_weight_that_somebody_else_has_changed_stays(path: Path, file: EnvoyFile) -> None:
    file.set(0, OWNER)
    file.set(500, OWNER)
    path.write_text(path.read_text().replace("weight: 500", "weight: 100").replace("weight: 9500", "weight: 9900"))
    with pytest.raises(RouteTaken, match=r"routes.yaml gives the candidate 100 of .* had set 500: .*a change at 20"):
        file.set(2500, OWNER)
    with pytest.raises(RouteTaken, match="100 and not the 500"):
        file.wait(500, timeout_s=0)
    file.let_go(OWNER)
    assert "Weights of" in path.read_text(), "what is not as it was set is not touched"
    path.unlink()
    with pytest.raises(RouteTaken, match="gives the candidate 0"):
        file.set(2500, OWNER)


def test_another_rollouts_file_is_not_taken_until_it_is_let_go(path: Path, file: EnvoyFile) -> None:
    file.set(0, OWNER)
    with pytest.raises(RouteTaken, match=r"belongs to rollout 3 \(a1\)"):
        file.set(0, "rollout 4 (b2)")
    file.let_go("rollout 4 (b2)")
    assert file.read().claim == Claim(OWNER, 0)
    file.let_go(OWNER)
    file.set(0, "rollout 4 (b2)")
    assert yaml.safe_load(path.read_text()) == routes_file(0, salt="a1")


@pytest.mark.parametrize("text", ["", "{", "resources: []", "resources: [{virtual_hosts: []}]", "\x00"])
def test_a_file_of_something_else_is_refused(path: Path, file: EnvoyFile, text: str) -> None:
    path.write_text(text)
    with pytest.raises(RouteTaken, match=r"routes.yaml holds no weights of candidate and stable: .*--share 0"):
        file.set(0, OWNER)
    assert path.read_text() == text


def test_a_folder_that_cannot_be_written_is_told_before_and_tried_again_later(tmp_path: Path, file: EnvoyFile) -> None:
    file.check()
    with pytest.raises(SpecError, match="its folder cannot be written"):
        EnvoyFile(tmp_path / "none" / "routes.yaml", salt="a1").check()
    with pytest.raises(Unavailable, match="cannot write"):
        EnvoyFile(tmp_path / "none" / "routes.yaml", salt="a1").set(0, OWNER)


@contextlib.contextmanager
def admin_that_says(answers: list[Any]) -> Iterator[str]:
    """Run an admin interface with one answer after the other, the last for ever; a number is a candidate's weight."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/config_dump?resource=dynamic_route_configs"
            said = answers.pop(0) if len(answers) > 1 else answers[0]
            if isinstance(said, int):
                said = {"configs": [{"route_config": routes_file(said / 10_000, salt="a1")["resources"][0]}]}  # type: ignore[index]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(said).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_every_envoy_has_to_go_by_the_file(path: Path) -> None:
    with admin_that_says([{}, 0, 500]) as one, admin_that_says([0, 0, 500]) as other:
        file = EnvoyFile(path, salt="a1", admins=[one, other])
        file.set(0, OWNER)
        file.set(500, OWNER)
        assert not file.wait(500, timeout_s=0)
        assert file.wait(500, timeout_s=10)


@pytest.mark.parametrize("said", [[], {"configs": [{"route_config": {"name": "trireme"}}]}])
def test_an_admin_interface_that_says_something_else_is_told(path: Path, said: Any) -> None:
    with admin_that_says([said]) as admin:
        file = EnvoyFile(path, salt="a1", admins=[admin])
        file.set(0, OWNER)
        with pytest.raises(Unavailable, match="does not say its routes"):
            file.wait(0, timeout_s=0)


def test_an_envoy_that_is_away_is_waited_for(path: Path) -> None:
    [port] = free_ports(1)
    file = EnvoyFile(path, salt="a1", admins=[f"127.0.0.1:{port}"])
    file.set(0, OWNER)
    with pytest.raises(Unavailable, match=f"interface 127.0.0.1:{port} does not say"):
        file.wait(0, timeout_s=5)
