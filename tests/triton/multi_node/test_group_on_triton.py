# SPDX-License-Identifier: Apache-2.0
"""A server over two nodes, on the real Triton: streams that are drained, and a group that ends as one.

The nodes are pods of this machine with a real sshd, ssh and mpirun; `tensorrt_llm` and what upstream runs at each rank
are fakes, so nothing here says that ranks talk to one another.
"""

import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from fake_packages import install_fake
from group_of_pods import GroupOfPods, needs_pods, wait_for
from pods import Pod
from process_words import words_of

pytestmark = [pytest.mark.triton, needs_pods]

PORTS = ("--host", "0.0.0.0", "--health-port", "8003")


def write_slow_fake(folder: Path) -> None:
    """Write a `tensorrt_llm` of 20 tokens a second."""
    install_fake(folder)
    text = (folder / "trtllm_behaviour.py").read_text()
    slow, num = re.subn(r"^_ITERATION_S = .*$", "_ITERATION_S = 0.05", text, flags=re.MULTILINE)
    assert num == 1
    (folder / "trtllm_behaviour.py").write_text(slow)


class Running:
    """A group of two whose server is ready."""

    def __init__(self, group: GroupOfPods) -> None:
        self.group = group
        self.worker = group.worker(1, "--exit-timeout-s", "30")
        self.leader = group.leader(serve=PORTS)
        wait_for(lambda: "ready after" in self.leader.log(), "server", self.leader, self.worker)

    @property
    def pods(self) -> tuple[Pod, Pod]:
        return self.leader, self.worker


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    write_slow_fake(tmp_path / "g/packages")
    model = tmp_path / "g/model"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"vocab_size": 4096, "max_position_embeddings": 2048, "eos_token_id": 2}')
    with GroupOfPods(tmp_path / "g", python_path=[tmp_path / "g/packages"]) as group:
        yield Running(group)


@pytest.mark.parametrize(
    "has_hook", [pytest.param(False, id="SIGTERM", marks=pytest.mark.soak), pytest.param(True, id="preStop")]
)
def test_streams_end_before_the_group_that_is_deleted(running: Running, has_hook: bool) -> None:
    ask = [sys.executable, "-m", "trireme", "generate", "hello", "--url", "10.77.0.10:8001", "--max-tokens", "60"]
    with running.group.pods.outside(ask) as client:
        assert client.stdout is not None
        first = client.stdout.read(1)
        running.worker.send(signal.SIGTERM)  # all at once, as Kubernetes does; a leader has a hook before
        if has_hook:
            hook = running.leader.run([sys.executable, "-m", "trireme", "drain"])
            assert (hook.returncode, hook.stdout) == (0, "drained: every stream came to its end\n"), hook.stderr
        running.leader.send(signal.SIGTERM)
        rest, said = client.communicate(timeout=30)
    assert client.returncode == 0, said
    assert len((first + rest).split()) > 20
    assert (running.leader.wait(), running.worker.wait()) == (0, 0)
    assert "asked to stop; the server drains" in running.leader.log()
    assert "processes of the group may run here for 30 s more" in running.worker.log()


@pytest.mark.parametrize(
    "loss", ["pod", "server", *(pytest.param(name, marks=pytest.mark.soak) for name in ("rank", "daemon"))]
)
def test_a_group_that_has_lost_a_part_ends_with_an_error(running: Running, loss: str) -> None:
    match loss:
        case "pod":
            running.worker.kill()
        case "rank":
            _of(running.worker, "trtllm-llmapi-launch").kill()
        case "daemon":
            _of(running.worker, "bin/prted").kill()
        case "server":
            _of(running.leader, "trireme serve").kill()
    lost_s = time.monotonic()
    assert running.leader.wait() == 1
    assert time.monotonic() - lost_s < 20
    said = "the server has ended with" if loss == "server" else "a rank or a node has died"
    assert f"trireme: {said}" in running.leader.log().splitlines()[-1]
    if loss != "pod":
        wait_for(lambda: len(running.worker.processes()) == 1, "end of the ranks", running.worker)
        running.worker.send(signal.SIGTERM)
        assert running.worker.wait() == 0


def test_ranks_end_with_their_leader(running: Running) -> None:
    running.leader.kill()
    wait_for(lambda: len(running.worker.processes()) == 1, "end of the ranks", running.worker)


@pytest.mark.soak
def test_a_node_that_vanishes_without_a_word_is_missed(running: Running) -> None:
    running.group.pods.cut(running.worker)
    assert running.leader.wait(60) == 1  # after some 40 s
    wait_for(lambda: len(running.worker.processes()) == 1, "end of the ranks", running.worker)


def _of(pod: Pod, words: str) -> psutil.Process:
    return [each for each in pod.main.children(recursive=True) if words in " ".join(words_of(each))][-1]
