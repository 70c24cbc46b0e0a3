# SPDX-License-Identifier: Apache-2.0
"""A rollout that is kept in PostgreSQL goes on from any machine, and through the death of the database."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from remote_controller import Controller, RemoteAddress
from rollout_site import Site, Texts, serving
from streams_under_change import Streams

from trireme.base.store_place import PostgresPlace

if TYPE_CHECKING:
    from postgres_here import PostgresServer

_AWAY_S = 2.0


@pytest.fixture
def machines(tmp_path: Path, postgres: "PostgresServer") -> Iterator[tuple[Site, Controller, Controller]]:
    """Yield a server, and two other machines that share nothing but the database."""
    address, store = RemoteAddress(tmp_path), PostgresPlace(postgres.url(postgres.new_database()))
    with serving(tmp_path / "server", step_ms=2.0, options=address.options) as server:
        one, other = (Controller(tmp_path / name, address.url, address.ca, store=store) for name in ("one", "other"))
        yield Site(server), one, other
        one.close()
        other.close()


def lose(postgres: "PostgresServer") -> None:
    """Kill the database, and start it again after a while."""
    postgres.kill()
    time.sleep(_AWAY_S)
    postgres.start()


@pytest.mark.soak
def test_another_machine_goes_on_and_the_database_may_die(
    machines: tuple[Site, Controller, Controller], postgres: "PostgresServer", texts: Texts
) -> None:
    site, one, other = machines
    by_release = {seed: texts[seed] for seed in (1, 2)}
    running = one.start("--steps", "20,50,100", "--step-requests", "100000")
    one.wait_for("running", running)
    with Streams(site.server.url, by_release, num_streams=16) as load:
        load.wait_for(2, 60)
        lose(postgres)
        load.wait_for(2, 60)
        assert running.poll() is None, running.communicate()[0]
        refused = " ".join(other.end_of(_run(other), code=2).split())
        assert f"another process ({running.pid} on " in refused, refused
        running.send_signal(signal.SIGKILL)
        running.communicate()
        running = _run(other)
        load.wait_for(2, 60)
    assert (load.wrong, load.refused) == ([], [])
    assert other.wait_for_counted(load.num_answers[2])[0] == load.num_answers[2]
    one.done("abort", "--why", "it was only to count")
    assert "rolled_back: it was only to count" in other.end_of(running, code=1)
    assert site.served()["canary"] is None


def test_a_process_that_waits_drives_what_another_machine_writes_down(
    machines: tuple[Site, Controller, Controller], postgres: "PostgresServer", texts: Texts
) -> None:
    site, operator, pod = machines
    options = ("--steps", "20,50,100", "--step-requests", "200", "--leave")
    said = operator.end_of(operator.start(*options), code=0)
    assert "rollout 1 to release 2 is written down" in said
    assert "nobody drives the rollouts of postgresql://" in said
    waiting = pod.rollout("run", "--wait")
    with Streams(site.server.url, {seed: texts[seed] for seed in (1, 2)}, num_streams=16) as load:
        operator.wait_for("running", waiting)  # the pod's process begins, and loads the release, under all that load
        load.wait_for(2, 50)
        lose(postgres)
        operator.wait_for("promoted", waiting)
        load.wait_for(2, 20)
    assert (load.wrong, load.refused) == ([], [])
    assert json.loads(operator.done("status", "--json"))["phase"] == "promoted"
    assert "nobody drives" not in operator.end_of(operator.start(*options), code=0)
    operator.wait_for("running", waiting)
    operator.done("abort", "--why", "one was enough")
    operator.wait_for("rolled_back", waiting)
    waiting.terminate()
    said = pod.end_of(waiting, code=0)
    assert "promoted: release 2 serves all" in said
    assert "rolled_back: one was enough" in said
    assert [each["release"] for each in site.served()["releases"]] == [2]


def _run(machine: Controller) -> subprocess.Popen[str]:
    return machine.rollout("run", "--port", str(machine.port))
