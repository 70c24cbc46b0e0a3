# SPDX-License-Identifier: Apache-2.0
"""A server that is warming up is not ready, one that is ready is warm, and no counter knows how it became so."""

import re
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from running_server import ENDPOINTS, RunningServer, deployment_text

from clients.streaming import GenerateRequest, TritonClient
from trireme.base.free_ports import free_ports

WARMING, WARM = "the engine is being warmed up", "the engine is warm"
STEP_MS = 1500.0
WAIT_S = 60.0
ADAPTERS = ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls")
# Of the engine alone, whatever it has done.
OF_REQUESTS = ("nv_inference", "nv_trt_llm", "nv_llm", "trireme_")
CONSTANTS = re.compile(r'request_type="max"|cache_block_type="(max|free|tokens_per)"|_max_num_seqs|engine_up|timestamp')


def wait_until(is_so: Callable[[], bool], why: Callable[[], str] = str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline_s, why()
        time.sleep(0.02)


class SlowlyWarming:
    """A server whose warm-up takes 3 s at least, from its first moment on."""

    def __init__(self, folder: Path) -> None:
        [self.health_port] = free_ports(1)
        text = deployment_text("warming", engine={"provider": "simulated", "step_ms": STEP_MS}, endpoints=ENDPOINTS)
        self.server = RunningServer(text, folder, options=("--health-port", str(self.health_port)))
        self.start = threading.Thread(target=self.server.__enter__, daemon=True)
        self.start.start()

    def wait_for(self, line: str, count: int) -> None:
        wait_until(lambda: self.log().count(line) >= count, self.log)

    def log(self) -> str:
        return self.server.log() if (self.server.folder / "serve.log").exists() else ""

    def is_ready(self) -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}/ready", timeout=5).close()
        except urllib.error.HTTPError as exc:
            exc.close()
            return False
        return True


@pytest.fixture
def warming(tmp_path: Path) -> Iterator[SlowlyWarming]:
    slow = SlowlyWarming(tmp_path)
    yield slow
    slow.start.join()
    slow.server.hurry()
    slow.server.leave()


def counted(server: RunningServer) -> dict[str, float]:
    """Return what is not 0 on the page of metrics, and says that something was done."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=5) as response:
        lines = response.read().decode().splitlines()
    samples = [line.rpartition(" ") for line in lines if line.startswith(OF_REQUESTS)]
    return {name: float(value) for name, _, value in samples if float(value) and not CONSTANTS.search(name)}


def test_a_warming_server_is_not_ready_and_a_ready_one_is_warm_with_no_count_of_it(warming: SlowlyWarming) -> None:
    server = warming.server
    warming.wait_for(WARMING, 1)
    assert (server.is_ready(), warming.is_ready()) == (False, False)
    assert WARM not in warming.log(), "asked too late to tell anything"
    warming.start.join()
    assert (server.is_ready(), warming.is_ready()) == (True, True)
    assert warming.log().count(WARM) == 1
    for adapter in ADAPTERS:  # Triton's stub imports it with its first request; here nobody has sent one
        maps = Path(f"/proc/{server.stub(adapter).pid}/maps").read_text()
        assert "/_asyncio.cpython" in maps, adapter
    assert counted(server) == {}

    server.engine_process().send_signal(signal.SIGKILL)
    warming.wait_for(WARMING, 2)
    assert not warming.is_ready()
    assert warming.log().count(WARM) == 1, "asked too late to tell anything"
    warming.wait_for("the engine is back", 3)  # of its owner and its two clients of the engine
    assert warming.log().count(WARM) == 2
    wait_until(warming.is_ready)  # the supervision asks five times a second
    request = GenerateRequest(text_input="hello", max_tokens=1, stream=True)
    with TritonClient(server.url) as client:
        assert [chunk.is_final for chunk in client.generate(request)] == [True]
    wait_until(lambda: server.metric("trireme_requests_total", model="ensemble", finish_reason="length") == 1)
