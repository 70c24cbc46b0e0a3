# SPDX-License-Identifier: Apache-2.0
"""A server that is asked to go: by a signal it is drained and stopped, by a caller drained and kept."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from ensemble_configs.spec.triton_spec import TritonSpec
from serving.supervisor.drain import Outcome
from serving.supervisor.drain_request import DrainRequest
from serving.supervisor.health import Health
from serving.supervisor.shutdown import Shutdown
from serving.supervisor.stop_signal import StopSignal
from serving.supervisor.supervision import Supervision
from serving.triton.triton_process import TritonProcess
from trireme.base.errors import Unavailable

WAIT_S = 20.0


class Server:
    """A tritonserver that becomes ready, or loads for ever, and holds no streams."""

    def __init__(self, folder: Path, *, is_loading: bool) -> None:
        self.run_dir = folder
        self.exit_status: int | None = None
        self.calls: list[str] = []
        self._is_loading = is_loading

    def is_loaded(self) -> bool:
        return not self._is_loading

    def is_stuck(self) -> bool:
        return False

    def answers(self, *, timeout_s: float) -> bool:  # noqa: ARG002
        return True

    def turn_unready(self) -> None:
        self.calls.append("unready")

    def close_doors(self, because: Unavailable) -> None:
        assert because.facts == {"reason": "draining"}

    def stop(self) -> None:
        self.calls.append("stop")

    def kill(self) -> None:
        self.calls.append("kill")

    def clean_up(self) -> None: ...


class Told(StopSignal):
    """A stop signal without real signals: another thread calls `send`."""

    def __init__(self) -> None:
        self.count = 0
        self._signal, self._asked = threading.Event(), threading.Event()  # type: ignore[assignment]

    def send(self) -> None:
        self._note(15, None)


class Site:
    """A supervision in a thread."""

    def __init__(self, folder: Path, threads: ThreadPoolExecutor, *, is_loading: bool, delay_s: float) -> None:
        self._folder = folder
        self._is_loading = is_loading
        self.servers: list[Server] = []
        self.told: list[str] = []
        self.stop, self.health = Told(), Health()
        self.request = DrainRequest(self.stop.ask)
        tell: Callable[[str], None] = self.told.append
        leaving = Shutdown(self.stop, self.request, self.health, delay_s=delay_s, timeout_s=5, tell=tell)
        supervision = Supervision(
            start=self._start,
            triton=TritonSpec(),
            stop=self.stop,
            health=self.health,
            leaving=leaving,
            ready_timeout_s=60,
            on_ready=lambda _: "welcome",
            tell=tell,
        )
        self.end = threads.submit(supervision.run)
        self._threads = threads

    def _start(self) -> TritonProcess:
        self.servers.append(Server(self._folder, is_loading=self._is_loading))
        return cast("TritonProcess", self.servers[-1])

    def wait_until(self, condition: Callable[[], object]) -> None:
        for _ in range(int(WAIT_S / 0.01)):
            if condition():
                return
            threading.Event().wait(0.01)
        raise AssertionError(self.told)

    def drain(self) -> object:
        """Ask for a drain, as a caller of the control socket does."""
        answer = self._threads.submit(self.request.handlers()["drain"], {}, lambda _: None)
        return answer.result(WAIT_S)["outcome"]


MakeSite = Callable[..., Site]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[MakeSite]:
    sites: list[Site] = []
    with ThreadPoolExecutor() as threads:

        def make(*, is_loading: bool = False, delay_s: float = 0.0) -> Site:
            sites.append(Site(tmp_path, threads, is_loading=is_loading, delay_s=delay_s))
            return sites[-1]

        yield make
        for each in sites:
            each.stop.send()
            each.stop.send()


def test_a_drained_server_stays_as_it_is_until_a_signal_comes(site: MakeSite) -> None:
    served = site()
    served.wait_until(lambda: "welcome" in served.told)
    assert served.drain() == "finished"
    assert served.drain() == "finished"
    [server] = served.servers
    assert server.calls == ["unready"]
    assert not served.end.done()
    assert not served.health.ready().is_yes
    assert served.health.ready().why == "drained"
    assert served.health.live().is_yes
    served.stop.send()
    served.end.result(WAIT_S)
    assert server.calls == ["unready", "stop", "kill"]
    assert served.told[-1] == "stopped"


def test_a_drained_server_that_dies_is_not_started_again(site: MakeSite) -> None:
    served = site()
    served.wait_until(lambda: "welcome" in served.told)
    served.drain()
    served.servers[0].exit_status = -9
    served.wait_until(lambda: "kill" in served.servers[0].calls)  # what is left of it goes
    assert "tritonserver ended with status -9; it was drained, and is left so" in served.told
    assert not served.end.done()
    assert served.health.live().is_yes
    served.stop.send()
    served.end.result(WAIT_S)
    assert len(served.servers) == 1


def test_a_server_that_loads_has_nothing_to_drain_and_does_not_become_ready(site: MakeSite) -> None:
    served = site(is_loading=True)
    served.wait_until(lambda: served.servers)
    assert served.drain() == "nothing"
    served.wait_until(lambda: "kill" in served.servers[0].calls)
    assert not served.end.done()
    assert served.health.ready().why == "drained"
    served.stop.send()
    served.end.result(WAIT_S)
    assert len(served.servers) == 1


def test_a_server_that_dies_while_it_is_drained_is_given_up_and_told(site: MakeSite) -> None:
    served = site(delay_s=60)
    served.wait_until(lambda: "welcome" in served.told)
    served.stop.ask()
    served.wait_until(lambda: any("taken for another 60 s" in line for line in served.told))
    served.servers[0].exit_status = -11
    with pytest.raises(Exception, match="failed while it was drained"):
        served.drain()
    assert "cannot drain: tritonserver ended by itself with status -11" in served.told
    served.wait_until(lambda: "kill" in served.servers[0].calls)
    assert len(served.servers) == 1
    assert not served.end.done()


def test_a_signal_during_a_drain_that_was_asked_for_hurries_nothing_and_the_second_does(site: MakeSite) -> None:
    served = site(delay_s=60)
    served.wait_until(lambda: "welcome" in served.told)
    served.stop.ask()
    served.wait_until(lambda: any("taken for another 60 s" in line for line in served.told))
    served.stop.send()
    with contextlib.suppress(TimeoutError):
        served.end.result(0.5)
    assert not served.end.done()
    served.stop.send()
    served.end.result(WAIT_S)
    assert served.drain() == Outcome.FINISHED.value
    assert served.servers[0].calls == ["unready", "stop", "kill"]
