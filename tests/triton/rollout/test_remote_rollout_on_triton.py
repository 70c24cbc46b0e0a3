# SPDX-License-Identifier: Apache-2.0
"""A rollout whose process shares nothing with its server but an address, a certificate's authority and a key."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from remote_controller import KEY, Controller, RemoteAddress
from rollout_site import Site, Texts, serving
from streams_under_change import Streams

from ensemble_configs.split.outcome_journal import JournalReader


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, str, Path]]:
    """Yield a server whose control other machines reach, its address, and the authority of its certificate."""
    folder = tmp_path_factory.mktemp("remote")
    address = RemoteAddress(folder)
    with serving(folder / "server", step_ms=2.0, options=address.options) as server:
        yield Site(server), address.url, address.ca


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
            load.wait_for(2, 80)
            running.send_signal(signal.SIGKILL)
            running.communicate()
            load.wait_for(1, 50)
            running = controller.rollout("run", "--port", str(controller.port))
        load.wait_for(2, 80)
    assert (load.wrong, load.refused) == ([], [])
    num_candidate, num_baseline = controller.wait_for_counted(load.num_answers[2])
    assert num_candidate == load.num_answers[2]
    assert abs(num_baseline - num_candidate) < 0.1 * num_candidate
    outcomes = site.folder / "build" / "live" / "outcomes"
    written = [line for folder in outcomes.iterdir() for line in JournalReader(folder).read({}).lines]
    assert len(written) <= sum(controller.counted()), "files that are counted and ended are gone"
    controller.done("abort", "--why", "it was only to count")
    assert "rolled_back: it was only to count" in controller.end_of(running, code=1)
    assert site.served()["canary"] is None


@pytest.mark.soak
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
