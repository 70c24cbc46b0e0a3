# SPDX-License-Identifier: Apache-2.0
"""The gateway's page in a real browser, before a real server: from the sign-in to a canary that is looked at."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import headless_browser
import pytest
from openai import OpenAI
from page_tab import ANSWER, PageTab
from running_server import ENDPOINTS, RunningServer, deployment_text
from two_releases import TOKENIZER
from waiting import wait_until

from trireme.base.free_ports import free_ports

pytestmark = pytest.mark.skipif(not headless_browser.is_there(), reason="no Chromium")

ENGINE = {"provider": "simulated", "step_ms": 20.0, "num_kv_blocks": 4096}


class Served(RunningServer):
    """A server with a gateway and two releases, whose engines answer differently."""

    def __init__(self, folder: Path) -> None:
        [port] = free_ports(1)
        self.address = f"http://127.0.0.1:{port}"
        older = {"release": 1, "tokenizer": TOKENIZER, "engine": ENGINE | {"seed": 1}}
        text = deployment_text(
            "served", engine=ENGINE | {"seed": 2}, endpoints=ENDPOINTS, release=2, other_releases=[older]
        )
        super().__init__(text, folder, options=("--gateway", "--gateway-port", str(port)))

    def key(self) -> str:
        wait_until(lambda: "page     " in self.log(), 60.0)
        [key] = set(re.findall(r"\btri-[0-9a-z]{12}-[\w-]{43}\b", self.log()))
        return str(key)

    def blocks_of_release_2(self) -> float:
        labels = {"model": "tensorrt_llm", "version": "2", "kv_cache_block_type": "used"}
        return self.metric("nv_trt_llm_kv_cache_block_metrics", **labels)

    def trireme(self, *arguments: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "trireme", *arguments]
        with (self.folder / f"{arguments[1]}.log").open("wb") as log:
            return subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)

    def said(self, command: str) -> str:
        return (self.folder / f"{command}.log").read_text(errors="replace")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served")) as server:
        yield server


@pytest.fixture
def tab(served: Served, tmp_path: Path) -> Iterator[PageTab]:
    """Yield the page, signed in with the key that the server shows."""
    with PageTab(served.address, tmp_path / "profile") as page:
        page.sign_in(served.key())
        page.wait_for_view("chat")
        yield page
        assert page.complaints == []


def test_the_address_of_the_page_is_shown_and_a_key_that_is_wrong_is_told(served: Served, tmp_path: Path) -> None:
    served.key()
    assert f"page     {served.address}/\n" in served.log()
    with PageTab(served.address, tmp_path / "profile") as page:
        page.sign_in("tri-wrong")
        page.wait("document.getElementById('key-failure').textContent")
        assert "401 invalid_api_key" in page.text("#key-failure")


def test_an_answer_is_seen_while_it_is_made_and_its_figures_are_the_api_s(served: Served, tab: PageTab) -> None:
    tab.option("max_tokens", 60)
    tab.option("temperature", 0)
    tab.send("What is the capital of France?")
    lengths = set()
    tab.run("new Promise((done) => setTimeout(done, 300))")
    while tab.run(f"document.querySelector('{ANSWER}').getAttribute('aria-busy')") == "true":
        lengths.add(tab.run(f"document.querySelector('{ANSWER} > .text').textContent.length"))
        if "≈" in tab.figure("rate"):
            assert float(tab.figure("rate").removeprefix("≈ ")) > 0
    assert len(lengths) > 3, "the text grows"
    text = tab.wait_for_answer()
    with OpenAI(base_url=f"{served.address}/v1", api_key=served.key(), max_retries=0) as client:
        answer = client.chat.completions.create(
            model="served",
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            max_tokens=60,
            temperature=0,
        )
    assert answer.choices[0].message.content == text
    assert answer.usage is not None
    assert tab.figure("tokens").startswith(f"60 (prompt {answer.usage.prompt_tokens}")
    assert tab.figure("end") == "length"
    assert 0 < float(tab.figure("rate")) < 200
    assert tab.text(f"{ANSWER} .by") == "served · release 2"


def test_a_stop_frees_the_engine(served: Served, tab: PageTab) -> None:
    tab.send("Tell me everything.")
    tab.wait(f"document.querySelector('{ANSWER} > .text')?.textContent.length > 20")
    wait_until(lambda: served.blocks_of_release_2() > 0, 20.0)
    tab.press("Escape")
    tab.wait_for_answer()
    wait_until(lambda: served.blocks_of_release_2() == 0, 20.0)
    assert tab.figure("end") == "stopped"


def test_two_releases_answer_side_by_side(served: Served, tab: PageTab) -> None:
    tab.go_to("compare")
    tab.option("max_tokens", 20, within="#compare-options")
    tab.option("temperature", 0, within="#compare-options")
    tab.wait("document.querySelector('#right [name=release]').value === '2'")  # both are suggested
    assert tab.run("document.querySelector('#left [name=release]').value") == "1"
    tab.send("Once upon a time")
    tab.wait("!document.getElementById('compared').hidden")
    left, right = (
        tab.run(f"document.querySelector('#{side} .answer > .text').textContent") for side in ("left", "right")
    )
    said = []
    with OpenAI(base_url=f"{served.address}/v1", api_key=served.key(), max_retries=0) as client:
        for release in (1, 2):
            answer = client.chat.completions.with_raw_response.create(
                model=f"served@{release}",
                messages=[{"role": "user", "content": "Once upon a time"}],
                max_tokens=20,
                temperature=0,
            )
            assert answer.headers["x-trireme-release"] == str(release)
            said.append(answer.parse().choices[0].message.content)
    assert [left, right] == said
    assert left != right
    tab.option("release", 9, within="#left")
    tab.run("document.getElementById('prompt').focus()")
    tab.press("Enter")
    tab.wait("document.querySelector('#left .failure').textContent")
    assert "release 9 is not loaded here" in tab.text("#left .answer .failure")
    assert "400 invalid_value" in tab.text("#left .answer .failure")


def test_the_figures_of_the_engines_move_with_what_runs(tab: PageTab) -> None:
    tab.send("Tell me everything.")
    tab.wait(f"document.querySelector('{ANSWER} > .text')?.textContent.length > 5")
    tab.go_to("live")
    cells = "[...document.querySelectorAll('#servers tbody tr')].map((row) => [...row.cells].map((at) => at.innerText))"
    tab.wait("document.querySelectorAll('#servers tbody tr').length === 2")
    tab.wait(f"parseInt({cells}[1][2]) === 1 && parseInt({cells}[1][5]) > 10")  # release 2: in the batch, tokens/s
    assert tab.run(cells)[0][1] == "takes requests"
    tab.wait("document.querySelectorAll('#tiles dd')[0].textContent === '1'")
    tab.wait("parseInt(document.querySelectorAll('#tiles dd')[2].textContent) > 10")
    tab.press("Escape")
    tab.wait("document.querySelectorAll('#tiles dd')[0].textContent === '0'")
    tab.wait(f"parseInt({cells}[1][2]) === 0 && {cells}[1][5] === '0'")


def test_a_rollout_is_seen_to_begin_and_to_end(served: Served, tab: PageTab) -> None:
    def is_shown(words: str) -> bool:
        assert rollout.poll() is None, served.said("start")
        return words in tab.text("#rollout")

    tab.go_to("live")
    tab.wait("document.getElementById('rollout').innerText.includes('There was none yet')")
    (served.folder / "candidate.yaml").write_text("engine: {seed: 3}\n")
    options = ("--steps", "50,100", "--port", "0", "--why", "seen on the page")
    rollout = served.trireme("rollout", "start", "candidate.yaml", *options)
    try:
        wait_until(lambda: is_shown("running since"), 120.0)
        shown = tab.text("#rollout")
        assert "canary of served" in shown
        assert "3 gets 50 % of the requests, beside 2" in shown
        tab.wait("document.querySelectorAll('#servers tbody tr').length === 3")  # the candidate's engine, too
        assert served.trireme("rollout", "abort", "--why", "seen enough").wait(60) == 0, served.said("abort")
        tab.wait("document.getElementById('rollout').innerText.includes('rolled back since')")
        assert "seen enough" in tab.text("#rollout")
        rollout.wait(60)
    finally:
        if rollout.poll() is None:
            rollout.terminate()
            rollout.wait()
