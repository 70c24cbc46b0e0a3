# SPDX-License-Identifier: Apache-2.0
"""A rollout of one server with two replicas: the candidate is on both or on neither, and both tell how requests end."""

import contextlib
import re
from collections.abc import Callable, Iterator

import psutil
import pytest
from certificates import Authority
from remote_controller import Controller, RemoteAddress
from rollout_site import GATE, Site, Texts, serving
from streams_under_change import Streams

Pair = tuple[list[Site], Callable[[str], Controller]]


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Yield two servers of one release, and a function that makes a machine that drives rollouts of both."""
    folder = tmp_path_factory.mktemp("replicas")
    authority = Authority(folder / "authority")
    sites, urls, controllers = [], [], []
    with contextlib.ExitStack() as held:
        for name in ("first", "second"):
            (folder / name).mkdir()
            address = RemoteAddress(folder / name, authority=authority)
            server = serving(folder / name / "server", step_ms=2.0, options=address.options)
            sites.append(Site(held.enter_context(server)))
            urls.append(address.url)

        def controller(name: str) -> Controller:
            controllers.append(Controller(folder / name, ",".join(urls), authority.ca))
            return controllers[-1]

        yield sites, controller
        for each in controllers:
            each.close()


def test_a_replica_that_loses_its_candidate_ends_the_rollout_at_both(replicas: Pair, texts: Texts) -> None:
    sites, controller_of = replicas
    controller = controller_of("ended")
    running = controller.start("--steps", "50,100", "--step-requests", "100000")
    controller.wait_for("running", running)
    assert [site.served()["canary"] for site in sites] == [2, 2]
    by_release = {seed: texts[seed] for seed in (1, 2)}
    with Streams(sites[0].server.url, by_release, num_streams=8) as load:
        load.wait_for(2, 50)
        engines = sites[1].served()["engine_pids"]
        psutil.Process(engines["2"]).kill()
        said = controller.end_of(running, code=1)
        load.wait_for(1, 50)
    assert "the candidate's engine ended or was started again" in said
    assert (load.wrong, load.refused) == ([], [])
    for site in sites:
        assert (site.served()["release"], site.served()["canary"]) == (1, None)
    assert sites[1].served()["engine_pids"] == {"1": engines["1"]}


def test_a_good_candidate_is_promoted_at_both_and_each_outcome_counts_once(replicas: Pair, texts: Texts) -> None:
    sites, controller_of = replicas
    controller = controller_of("promoted")
    by_release = {seed: texts[seed] for seed in (1, 2)}
    running = controller.start("--steps", "50,100", "--step-requests", "50")
    with contextlib.ExitStack() as held:
        loads = [held.enter_context(Streams(site.server.url, by_release, num_streams=8)) for site in sites]
        said = controller.end_of(running, code=0)
        for load in loads:
            load.wait_for(2, 20)
    assert "promoted: release 2 serves all" in said
    assert [(load.wrong, load.refused) for load in loads] == [([], [])] * 2
    for site in sites:
        assert [each["release"] for each in site.served()["releases"]] == [2]
    candidate, baseline = controller.counted()
    assert min(candidate, baseline) >= GATE["min_requests"]
    assert candidate <= sum(load.num_answers[2] for load in loads)
    assert abs(candidate - baseline) < 0.1 * candidate
    for load in loads:  # no replica alone has had them
        assert load.num_answers[1] > 0.3 * baseline


def test_replicas_that_serve_different_releases_begin_nothing(replicas: Pair) -> None:
    sites, controller_of = replicas
    controller = controller_of("differ")
    [release] = sites[1].served()["releases"]
    sites[1].control.ask("add", release={**release, "release": 7})
    try:
        said = " ".join(controller.end_of(controller.start(), code=2).split())
        assert re.search("the replicas do not serve the same: canary is (7|null) at", said)
    finally:
        sites[1].control.ask("remove", number=7)
