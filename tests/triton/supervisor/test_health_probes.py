# SPDX-License-Identifier: Apache-2.0
"""Probes of a real server, from its first moment to its last.

It loads, serves, is without its engine, is without its Triton, and drains.
"""

import contextlib
import http.client
import json
import signal
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from running_server import RunningServer, deployment_text

from clients.streaming import GenerateRequest, TritonClient
from trireme.base.free_ports import free_ports

pytestmark = pytest.mark.triton

Seen = tuple[bool | None, bool | None, bool | None]  # live, started, ready; None: nobody answers
NOBODY: Seen = (None, None, None)
WAIT_S = 30.0


class Probes:
    """Probes as the kubelet asks, but more often; each change is kept."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.why = ""
        self.seen: list[Seen] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._go_on)

    def __enter__(self) -> "Probes":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def wait_for(self, expected: Seen) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while self.seen[-1:] != [expected]:
            assert time.monotonic() < deadline_s, (expected, self.seen)
            time.sleep(0.01)

    def _go_on(self) -> None:
        while not self._is_over.wait(0.02):
            now = self._ask_all()
            # Three requests: of a change between them the first half may be old and the second new.
            if self.seen[-1:] != [now] and self._ask_all() == now:
                self.seen.append(now)

    def _ask_all(self) -> Seen:
        return self._ask("live"), self._ask("started"), self._ask("ready")

    def _ask(self, question: str) -> bool | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/{question}", timeout=5) as response:
                return bool(json.load(response)["ok"])
        except urllib.error.HTTPError as exc:
            with exc, contextlib.suppress(http.client.IncompleteRead):  # its server ends at this moment
                self.why = json.load(exc)["why"]
            return False
        except (OSError, http.client.IncompleteRead):
            return None


def test_probes_tell_loading_from_dead_and_a_dead_engine_from_a_ready_one(tmp_path: Path) -> None:
    [port] = free_ports(1)
    deployment = deployment_text("probed", engine={"provider": "simulated", "step_ms": 20.0})
    server = RunningServer(deployment, tmp_path, options=("--health-port", str(port)))
    with Probes(port) as probes, server:
        probes.wait_for((True, True, True))
        loading: Seen = (True, False, False)
        assert [seen for seen in probes.seen if seen != NOBODY][:2] == [loading, (True, True, True)]

        server.engine_process().send_signal(signal.SIGKILL)
        probes.wait_for((True, True, False))
        assert "the engine of tensorrt_llm is dead" in probes.why
        probes.wait_for((True, True, True))

        server.tritonserver().send_signal(signal.SIGKILL)
        probes.wait_for((True, True, False))
        assert probes.why == "restarting"
        probes.wait_for((True, True, True))

        with TritonClient(server.url) as client:
            chunks = client.generate(GenerateRequest(text_input="hello", max_tokens=100, stream=True))
            next(chunks)
            server.interrupt()
            probes.wait_for((True, True, False))
            assert probes.why == "draining"
            assert sum(1 for _ in chunks) > 10  # the stream goes on to its end
        assert server.stop() == 0
        probes.wait_for(NOBODY)
        assert all(seen[0] for seen in probes.seen if seen != NOBODY)  # never a reason to kill it
