# SPDX-License-Identifier: Apache-2.0
"""A rollout whose process shares nothing with its server but an address, a certificate's authority and a key."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from certificates import Authority
from rollout_site import GATE, PATIENCE_S, Site, Texts, serving
from streams_under_change import Streams

from clients.rollout.records.store import Store
from ensemble_configs.split.outcome_journal import JournalReader
from trireme.base.free_ports import free_ports

KEY = "a-key-of-the-rollout-0123456789"
STEP_S = 60.0


class Controller:
    """Another machine: a folder of its own, from which nothing of the server's is named."""

    def __init__(self, folder: Path, url: str, ca: Path, *, key: str) -> None:
        folder.mkdir()
        shutil.copy(ca, folder / "ca.crt")
        (folder / "key.txt").write_text(f"{key}\n")
        (folder / "gate.yaml").write_text(yaml.safe_dump(GATE))
        (folder / "candidate.yaml").write_text(yaml.safe_dump({"engine": {"seed": 2}}))
        self.folder, self.url = folder, url
        self._begun: list[subprocess.Popen[str]] = []
        [self.port] = free_ports(1)
        self.store = folder / "build" / url.removeprefix("https://").replace(":", "-") / "rollouts.sqlite"

    def rollout(self, *arguments: str) -> subprocess.Popen[str]:
        running = subprocess.Popen(
            [sys.executable, "-m", "trireme", "rollout", *arguments],
            cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._begun.append(running)
        return running

    def close(self) -> None:
        """End what a test that failed has left."""
        for running in self._begun:
            if running.poll() is None:
                running.kill()
                running.communicate()

    def start(self, *options: str) -> subprocess.Popen[str]:
        return self.rollout(
            "start", "candidate.yaml", "--port", str(self.port), "--gate", "gate.yaml", "--lease-s", "1",
            "--server", self.url, "--server-ca-file", "ca.crt", "--server-token-file", "key.txt", *options,
        )  # fmt: skip

    def end_of(self, running: subprocess.Popen[str], *, code: int) -> str:
        try:
            text, _ = running.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            running.kill()
            raise AssertionError(running.communicate()[0]) from None
        assert running.returncode == code, text
        return text

    def done(self, *arguments: str) -> str:
        return self.end_of(self.rollout(*arguments), code=0)

    def phase(self) -> str:
        if not self.store.exists():
            return ""
        with Store(self.store) as store:
            return next((str(one.phase) for one in reversed(store.rollouts())), "")

    def wait_for(self, phase: str, running: subprocess.Popen[str]) -> None:
        deadline_s = time.monotonic() + STEP_S
        while self.phase() != phase:
            assert running.poll() is None, running.communicate()[0]
            assert time.monotonic() < deadline_s, self.phase()
            time.sleep(0.1)

    def counted(self) -> tuple[int, int]:
        """Return the requests that the last rollout has counted at its first share, of the candidate and the other."""
        with Store(self.store) as store:
            evidence: Mapping[str, Any] = store.evidence(store.rollouts()[-1].id, 0) or {}
        candidate, baseline = evidence.get("num_requests", (0, 0))
        return int(candidate), int(baseline)


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, str, Path]]:
    """Yield a server whose control other machines reach, its address, and the authority of its certificate."""
    folder = tmp_path_factory.mktemp("remote")
    authority = Authority(folder / "authority")
    pair = authority.server()
    (folder / "keys.txt").write_text(f"another-key-0123456789\n{KEY}\n")
    [port] = free_ports(1)
    options = {
        "--remote-host": "0.0.0.0",
        "--remote-port": str(port),
        "--remote-cert-file": str(pair.cert),
        "--remote-key-file": str(pair.key),
        "--remote-token-file": str(folder / "keys.txt"),
    }
    with serving(
        folder / "server", step_ms=2.0, options=tuple(part for one in options.items() for part in one)
    ) as server:
        yield Site(server), f"https://127.0.0.1:{port}", authority.ca


@pytest.fixture
def controller_of(remote: tuple[Site, str, Path], tmp_path: Path) -> Iterator[Callable[..., Controller]]:
    """Yield a function that makes another machine of a name."""
    made: list[Controller] = []

    def make(name: str, *, key: str = KEY) -> Controller:
        made.append(Controller(tmp_path / name, *remote[1:], key=key))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_wrong_key_begins_nothing(remote: tuple[Site, str, Path], controller_of: Callable[..., Controller]) -> None:
    site, stranger = remote[0], controller_of("stranger", key="a-wrong-key-0123456789")
    said = stranger.end_of(stranger.start(), code=2)
    assert "it got the key of --server-token-file" in " ".join(said.split())
    assert "a-wrong-key-0123456789" not in said
    assert (stranger.phase(), site.served()["canary"]) == ("", None)


def test_each_outcome_counts_once_though_the_rollout_is_killed(
    remote: tuple[Site, str, Path], controller_of: Callable[..., Controller], texts: Texts
) -> None:
    site, controller, second = remote[0], controller_of("controller"), controller_of("second")
    running = controller.start("--steps", "20,50,100", "--step-requests", "100000")
    controller.wait_for("running", running)
    said = " ".join(second.end_of(second.start(), code=2).split())
    assert f"this server is steered by a rollout of release 2 (process {running.pid} on " in said
    with Streams(site.server.url, {seed: texts[seed] for seed in (1, 2)}, num_streams=16) as load:
        for _ in range(2):
            load.wait_for(2, 150)
            running.send_signal(signal.SIGKILL)
            running.communicate()
            load.wait_for(1, 50)
            running = controller.rollout("run", "--port", str(controller.port))
        load.wait_for(2, 150)
    assert (load.wrong, load.refused) == ([], [])
    deadline_s = time.monotonic() + STEP_S
    while controller.counted()[0] < load.num_answers[2] and time.monotonic() < deadline_s:
        time.sleep(0.1)
    time.sleep(2)  # what came twice would come now
    num_candidate, num_baseline = controller.counted()
    assert num_candidate == load.num_answers[2]
    assert abs(num_baseline - num_candidate) < 0.1 * num_candidate
    outcomes = site.folder / "build" / "live" / "outcomes"
    written = [line for folder in outcomes.iterdir() for line in JournalReader(folder).read({}).lines]
    assert len(written) <= sum(controller.counted()), "files that are counted and ended are gone"
    controller.done("abort", "--why", "it was only to count")
    assert "rolled_back: it was only to count" in controller.end_of(running, code=1)
    assert site.served()["canary"] is None


def test_a_good_candidate_is_promoted(
    remote: tuple[Site, str, Path], controller_of: Callable[..., Controller], texts: Texts
) -> None:
    (site, url, _), controller = remote, controller_of("controller")
    with Streams(site.server.url, {seed: texts[seed] for seed in (1, 2)}, num_streams=16) as load:
        running = controller.start("--steps", "20,50,100", "--step-requests", "20")
        said = controller.end_of(running, code=0)
        load.wait_for(2, 20)
    assert "promoted: release 2 serves all" in said
    assert (load.wrong, load.refused) == ([], [])
    assert [each["release"] for each in site.served()["releases"]] == [2]
    assert json.loads(controller.done("status", "--json"))["phase"] == "promoted"
    assert "promoted: release 2 serves all" in controller.done("history", "--server", url)
    found = controller.done("estimate", "--server", url, "--server-ca-file", "ca.crt", "--server-token-file", "key.txt")
    assert "requests a second" in found
