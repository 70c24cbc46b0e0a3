# SPDX-License-Identifier: Apache-2.0
"""The figures of a server, from a page of metrics whose numbers are known."""

import asyncio
import socket

import pytest
from metrics_page import metrics_page

from clients.access import NO_ACCESS
from gateway.live.server_figures import MetricsPage, ServerFigures, figures_of, page_addresses
from gateway.served_models import ServedModel
from trireme.base.errors import SpecError

MODELS = (
    ServedModel("chat", "chat_ensemble"),
    ServedModel("code", "code_tensorrt_llm_bls"),
)
NAMES = {"chat_tensorrt_llm": "chat", "code_tensorrt_llm": "code"}


def engine(name: str, value: float, model: str = "chat_tensorrt_llm", version: int = 2) -> tuple[str, float]:
    return f'{name}{{model="{model}",version="{version}"}}', value


def test_each_release_of_each_model_has_its_figures_and_what_is_not_told_is_none() -> None:
    before = dict([engine("trireme_engine_output_tokens_total", 100)])
    values = dict(
        [
            engine("trireme_engine_up", 1),
            engine("trireme_requests_running", 3),
            engine("trireme_requests_waiting", 2),
            engine("trireme_engine_max_num_seqs", 64),
            engine("trireme_kv_cache_usage_fraction", 0.25),
            engine("trireme_engine_output_tokens_total", 150),
            engine("trireme_engine_up", 0, model="code_tensorrt_llm", version=1),
            engine("trireme_engine_up", 1, model="chat_tensorrt_llm_draft"),
            engine("trireme_requests_running", 9, version=1),  # of a release that has gone
            ('trireme_queue_requests{class="batch",model="chat_tensorrt_llm",version="2"}', 5),
            ('trireme_split_requests_total{arm="a",model="chat_ensemble",release="1",version="1"}', 10),
            ('trireme_split_requests_total{arm="b",model="chat_ensemble",release="1",version="1"}', 1),
            ('trireme_split_requests_total{arm="b",model="chat_ensemble",release="2",version="1"}', 4),
        ]
    )
    found = figures_of(values, NAMES, before=before, seconds=2.0)
    chat, code = found.engines
    assert (chat.model, chat.release, chat.is_up) == ("chat", 2, True)
    assert (chat.running_requests, chat.waiting_requests, chat.max_running_requests) == (3, 2, 64)
    assert (chat.kv_cache_usage_fraction, chat.tokens_per_s, chat.queued) == (0.25, 25, {"batch": 5})
    assert (code.model, code.release, code.is_up) == ("code", 1, False)
    assert code.running_requests is code.waiting_requests is code.kv_cache_usage_fraction is code.tokens_per_s is None
    assert found.splits == {1: 11, 2: 4}


def test_a_server_that_counts_anew_has_made_no_tokens_less() -> None:
    before = dict([engine("trireme_engine_output_tokens_total", 100)])
    values = dict([engine("trireme_engine_up", 1), engine("trireme_engine_output_tokens_total", 5)])
    assert figures_of(values, NAMES, before=before, seconds=1.0).engines[0].tokens_per_s == 0


def test_a_page_is_read_once_a_second_however_many_look_and_its_fault_is_told() -> None:
    num_read = 0

    def text() -> str:
        nonlocal num_read
        num_read += 1
        return f'trireme_engine_up{{model="chat_tensorrt_llm",version="1"}} 1\ntrireme_other {num_read}\n'

    async def look(url: str, now_s: list[float]) -> list[ServerFigures]:
        page = MetricsPage(url, MODELS, NO_ACCESS, lambda: now_s[0])
        found = list(await asyncio.gather(*(page.figures() for _ in range(5))))
        now_s[0] += 1.5
        return [*found, await page.figures()]

    with metrics_page(text) as address:
        found = asyncio.run(look(f"http://{address}/metrics", [10.0]))
    assert num_read == 2
    assert all(each.why_not == "" and each.engines[0].model == "chat" for each in found)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    [away, *_] = asyncio.run(look(f"http://127.0.0.1:{port}/metrics", [10.0]))
    assert away.engines == []
    assert away.why_not == f"http://127.0.0.1:{port}/metrics: Connection refused"


def test_an_address_may_be_a_host_and_a_port_and_there_is_one_for_each_server() -> None:
    assert page_addresses([], ["a:1", "b:1"]) == {}
    found = page_addresses(["a:2", "https://b:2/m"], ["a:1", "b:1"])
    assert found == {"a:1": "http://a:2/metrics", "b:1": "https://b:2/m"}
    assert page_addresses(["dns:///pods:2"], ["grpcs+dns:///pods:1"]) == {"grpcs+dns:///pods:1": "dns:///pods:2"}
    with pytest.raises(SpecError, match="--metrics-url is given 1 times for 2 servers"):
        page_addresses(["a:2"], ["a:1", "b:1"])


@pytest.mark.parametrize(
    "given", ["a:2", "dns:///others:2", "grpcs+dns:///pods:2", "dns:///pods:0", "http://pods:2/metrics"]
)
def test_servers_that_come_and_go_have_pages_of_their_name(given: str) -> None:
    with pytest.raises(SpecError, match=r"not of the same servers as --url dns:///pods:1.*write dns:///pods:PORT"):
        page_addresses([given], ["dns:///pods:1"])


def test_one_server_has_no_pages_of_a_name() -> None:
    with pytest.raises(SpecError, match="--url a:1 is one server; write host:port"):
        page_addresses(["dns:///pods:2"], ["a:1"])


@pytest.mark.parametrize(
    "given", ["", "nonsense", "[::1", "ftp://a", "a:x", "http://", "a b:1", "file:///etc/passwd", "http://a:99999"]
)
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(SpecError, match="is no address of a page of metrics"):
        page_addresses([given], ["a:1"])
