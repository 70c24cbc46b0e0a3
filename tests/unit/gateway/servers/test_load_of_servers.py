# SPDX-License-Identifier: Apache-2.0
"""A gateway before scripted servers with pages of metrics: what others do there moves its requests elsewhere."""

import contextlib
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from gateway_before_scripts import counts, wait_until
from kserve_server import KServeServer, story
from metrics_page import metrics_page
from running_gateway import RunningGateway

from gateway.servers import server, server_pool


class Figures:
    """The figures that a server shows; a test changes them."""

    running, waiting, text = 0, 0, ""

    def page(self) -> str:
        return self.text or (
            'trireme_engine_up{model="tensorrt_llm",version="1"} 1\n'
            f'trireme_requests_running{{model="tensorrt_llm",version="1"}} {self.running}\n'
            f'trireme_requests_waiting{{model="tensorrt_llm",version="1"}} {self.waiting}\n'
        )


class Site(NamedTuple):
    """A gateway, two servers, and what they show."""

    gateway: RunningGateway
    servers: list[KServeServer]
    shown: list[Figures]

    def loads(self) -> list[float]:
        """Return the load of each server as the gateway's metrics tell it; of unknown ones there is none."""
        page = self.gateway.call("GET", "/metrics").data.decode()
        return [float(value) for value in re.findall(r"^trireme_gateway_server_load_requests{.*} (\S+)$", page, re.M)]

    def ask(self, number: int) -> list[int]:
        """Return how many of some requests went to each server."""
        before = counts(self.servers)
        for each in range(number):
            assert self.gateway.complete(prompt=f"{each} {before}").status == 200
        return [now - then for now, then in zip(counts(self.servers), before, strict=True)]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(server_pool, "READ_S", 0.05)
    shown = [Figures(), Figures()]
    with contextlib.ExitStack() as stack:
        pages = tuple(stack.enter_context(metrics_page(figures.page)) for figures in shown)
        servers = [stack.enter_context(KServeServer(*story())) for _ in shown]
        urls = (each.url for each in servers)
        yield Site(stack.enter_context(RunningGateway(*urls, metrics_urls=pages)), servers, shown)


def test_requests_go_where_others_have_less_to_do(site: Site) -> None:
    site.shown[0].running = 6
    wait_until(lambda: site.loads() == [6, 0])
    assert site.ask(5) == [0, 5]
    site.shown[0].running, site.shown[1].waiting = 0, 9
    wait_until(lambda: site.loads() == [0, 9])
    assert site.ask(5) == [5, 0]


def test_a_server_whose_page_is_broken_counts_as_the_others_and_its_log_says_so_once(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="trireme.gateway")
    wait_until(lambda: site.loads() == [0, 0])
    site.shown[0].text = "is down for repair"
    site.shown[1].running = 6
    wait_until(lambda: site.loads() == [6])
    assert site.ask(6) == [3, 3]
    site.shown[0].text = ""
    wait_until(lambda: site.loads() == [0, 6])
    assert site.ask(3) == [3, 0]
    said = [record.message for record in caplog.records if "the load of server" in record.message]
    assert len([text for text in said if "is unknown" in text and site.servers[0].url in text]) == 1
    assert len([text for text in said if "is known again" in text]) == 1


def test_figures_that_have_grown_old_are_not_used(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.shown[0].running = 6
    wait_until(lambda: site.loads() == [6, 0])
    monkeypatch.setattr(server, "FRESH_S", 0.2)
    for figures in site.shown:
        figures.text = "is down for repair"
    wait_until(lambda: site.loads() == [])
    assert site.ask(6) == [3, 3]


def test_one_server_alone_is_asked_for_no_load() -> None:
    asked = []

    def page() -> str:
        asked.append(1)
        return Figures().page()

    with (
        metrics_page(page) as address,
        KServeServer(*story()) as only,
        RunningGateway(only.url, metrics_urls=(address,)) as gateway,
    ):
        assert gateway.complete().status == 200
        assert asked == []
