# SPDX-License-Identifier: Apache-2.0
"""The command `trireme chat`: a conversation by lines, in a terminal and without one."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from kserve_server import HANG, KServeServer, Step, response, story

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "trireme", "chat", "--url"]
TEXT = "Once upon ünd"
WAIT_S = 20.0


def tensors_of(request: Any) -> dict[str, bytes]:
    return dict(zip((tensor.name for tensor in request.inputs), request.raw_input_contents, strict=True))


def messages_of(request: Any) -> list[tuple[str, str]]:
    sent = tensors_of(request)
    return [(one["role"], one["content"]) for one in json.loads(sent["messages"][4:])]


def piped(server: KServeServer, text: str, *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMMAND, server.url, *options], input=text, capture_output=True, text=True, check=False, timeout=60
    )


def test_each_line_is_a_message_and_the_answers_alone_are_printed() -> None:
    with KServeServer(*story()) as server:
        done = piped(server, "Hi\n\nAnd then?\n/new\nBye\n", "--system", "Be brief.")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{TEXT}\n" * 3, "")
    assert [messages_of(request) for request in server.requests] == [
        [("system", "Be brief."), ("user", "Hi")],
        [("system", "Be brief."), ("user", "Hi"), ("assistant", TEXT), ("user", "And then?")],
        [("system", "Be brief."), ("user", "Bye")],
    ]


def test_an_answer_may_be_as_long_as_fits_and_greedy_at_temperature_zero() -> None:
    with KServeServer(*story()) as server:
        piped(server, "Hi\n", "--temperature", "0")
        piped(server, "Hi\n", "--max-tokens", "7", "--seed", "3")
    sent = [
        dict(zip((each.name for each in one.inputs), one.raw_input_contents, strict=True)) for one in server.requests
    ]
    assert sent[0]["max_tokens"] == (-1).to_bytes(4, "little", signed=True)
    assert "temperature" not in sent[0]
    assert (sent[1]["max_tokens"], sent[1]["seed"]) == ((7).to_bytes(4, "little"), (3).to_bytes(8, "little"))


def test_without_a_terminal_a_failure_ends_the_command() -> None:
    with KServeServer("[UNAVAILABLE reason=engine_died] the engine has died") as server:
        done = piped(server, "Hi\nAgain\n")
    assert done.returncode == 1
    assert "the engine has died" in done.stderr
    assert len(server.requests) == 1


class Terminal:
    """The command in a terminal of its own."""

    def __init__(self, server: KServeServer) -> None:
        self._main, other = pty.openpty()
        self.process = subprocess.Popen(
            [*COMMAND, server.url], stdin=other, stdout=other, stderr=other, start_new_session=True
        )
        os.close(other)
        self.shown = ""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._main)

    def type(self, text: str) -> None:
        os.write(self._main, text.encode())

    def wait_for(self, text: str) -> None:
        until_s = time.monotonic() + WAIT_S
        while text not in self.shown:
            assert time.monotonic() < until_s, self.shown
            try:
                self.shown += os.read(self._main, 4096).decode(errors="replace")
            except OSError:  # how a terminal says that nobody holds it any more
                pytest.fail(f"the command has ended; it showed: {self.shown}")
        self.shown = self.shown.partition(text)[2]


def test_in_a_terminal_an_answer_can_be_stopped_and_a_failure_is_told() -> None:
    steps: list[Step] = [response("Once", num_output_tokens=1), HANG]
    with KServeServer(*steps) as server, Terminal(server) as terminal:
        terminal.wait_for("Ctrl-D ends")
        terminal.wait_for("> ")
        terminal.type("Hi\n")
        terminal.wait_for("Once")
        os.killpg(terminal.process.pid, signal.SIGINT)
        assert server.was_cancelled.wait(WAIT_S)
        terminal.wait_for("> ")
        server.script = ("[UNAVAILABLE reason=engine_died] the engine has died",)
        terminal.type("Again\n")
        terminal.wait_for("the engine has died")
        terminal.wait_for("> ")
        server.script = tuple(story())
        terminal.type("Once more\n")
        terminal.wait_for("tokens/s")
        assert messages_of(server.requests[-1]) == [("user", "Hi"), ("assistant", "Once"), ("user", "Once more")]
        terminal.wait_for("> ")
        terminal.type("\x04")
        assert terminal.process.wait(WAIT_S) == 0
