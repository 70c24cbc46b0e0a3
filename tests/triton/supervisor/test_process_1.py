# SPDX-License-Identifier: Apache-2.0
"""`trireme serve` as process 1, as it is in a container."""

import signal
import time
from pathlib import Path

import pytest
from pid_namespace import IN_PID_NAMESPACE, process_1, skip_without_pid_namespaces, zombies
from raw_calls import StreamFailed, stream
from running_server import RunningServer, deployment_text

WAIT_S = 30.0


class Contained(RunningServer):
    """A server in a PID namespace of its own."""

    def __init__(self, folder: Path) -> None:
        text = deployment_text("contained", engine={"provider": "simulated", "step_ms": 20.0})
        super().__init__(text, folder, below=IN_PID_NAMESPACE)

    def interrupt(self, number: int = signal.SIGTERM) -> None:
        process_1(self.process).send_signal(number)


def test_as_process_1_it_drains_on_sigterm_and_no_zombie_is_left_of_servers_that_were_killed(tmp_path: Path) -> None:
    skip_without_pid_namespaces()
    with Contained(tmp_path) as server:
        for count in (1, 2):
            running = stream(server.url, "ensemble", {"text_input": "hello", "max_tokens": 2000, "stream": True})
            next(running)
            assert len(server.descendants()) >= 8  # of ours two, the server, four stubs, the engine
            server.tritonserver().kill()
            with pytest.raises(StreamFailed, match="UNAVAILABLE"):
                list(running)
            deadline_s = time.monotonic() + WAIT_S
            while server.log().count("ready again") < count:
                assert time.monotonic() < deadline_s, server.log()
                time.sleep(0.05)
            assert zombies(server.process) == []

        running = stream(server.url, "ensemble", {"text_input": "hello", "max_tokens": 100, "stream": True})
        next(running)
        server.interrupt()
        assert len(list(running)) > 50
        assert server.stop() == 0
        assert "stopped" in server.log()
