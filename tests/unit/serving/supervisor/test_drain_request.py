# SPDX-License-Identifier: Apache-2.0
"""Callers that ask a server to drain: all hear the same progress and the same end, whenever they ask."""

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clients.server_control import ServerControl
from serving.supervisor.drain import Outcome
from serving.supervisor.drain_request import DrainRequest
from trireme.base.errors import ServerError
from trireme.base.unix_rpc import RpcServer

WAIT_S = 20.0


class Server:
    """A control socket, and the supervision's side of the request."""

    def __init__(self, folder: Path) -> None:
        self.is_asked = threading.Event()
        self.request = DrainRequest(self.is_asked.set)
        self.path = folder / "control.sock"
        self._socket = RpcServer(self.path, self.request.handlers())

    def close(self) -> None:
        self._socket.close()

    def ask(self) -> tuple[list[str], object]:
        """Return a caller's progress lines, and its answer."""
        told: list[str] = []
        return told, ServerControl(self.path, timeout_s=WAIT_S, tell=told.append).ask("drain")["outcome"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with contextlib.closing(Server(tmp_path)) as found:
        yield found


def test_the_supervision_is_asked_and_the_caller_waits_for_its_end(server: Server) -> None:
    with ThreadPoolExecutor() as callers:
        answer = callers.submit(server.ask)
        assert server.is_asked.wait(WAIT_S)
        server.request.note("not ready any more")
        assert not answer.done()
        server.request.note("waiting")
        server.request.finish(Outcome.FINISHED)
        assert answer.result(WAIT_S) == (["not ready any more", "waiting"], "finished")


def test_all_who_ask_wait_for_one_drain_and_hear_it_from_its_beginning(server: Server) -> None:
    with ThreadPoolExecutor() as callers:
        first = callers.submit(server.ask)
        assert server.is_asked.wait(WAIT_S)
        server.request.note("one")
        others = [callers.submit(server.ask) for _ in range(3)]
        server.request.note("two")
        server.request.finish(Outcome.CUT)
        assert [caller.result(WAIT_S) for caller in [first, *others]] == [(["one", "two"], "cut")] * 4
    assert server.ask() == (["one", "two"], "cut")  # it is over


def test_the_first_outcome_counts(server: Server) -> None:
    server.request.finish(Outcome.CUT)
    server.request.finish(Outcome.NOTHING)
    assert server.ask() == ([], "cut")


def test_a_server_that_failed_meanwhile_is_an_error(server: Server) -> None:
    server.request.finish(Outcome.LOST)
    with pytest.raises(ServerError, match="failed while it was drained"):
        server.ask()
