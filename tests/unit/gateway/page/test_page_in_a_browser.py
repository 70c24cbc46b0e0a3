# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser, before a scripted server: what it shows of each kind of answer, and what it keeps."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import headless_browser
import msgspec
import pytest
from key_places import bearer
from kserve_server import DIE, HANG, KServeServer, Step, response, story
from metrics_page import metrics_page
from page_tab import ANSWER, PageTab
from running_gateway import RunningGateway
from scripted_embeddings import embedding_model

from clients.openai_api.tool_calls.reader_choice import Style
from clients.rollout.records.rollout_plan import Plan
from clients.rollout.records.state import Phase
from clients.rollout.records.store import Store
from gateway.access.caller import Role
from gateway.access.key_record import NewKey
from gateway.access.key_store import KeyStore
from gateway.served_models import ServedModel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not headless_browser.is_there(), reason="no Chromium: `scripts/bootstrap.py --only chromium`"),
]

DEMO = ServedModel("demo", "ensemble", 100, pinning_model="tensorrt_llm_bls")
OTHER = ServedModel("other", "other_ensemble")
THINKING = (ServedModel("demo", "ensemble", 100, tool_style=Style.HERMES, is_reasoning=True),)
TEXT = "Once upon ünd"
MARKUP = "<img src=x onerror=\"fetch('/stolen')\"><script>fetch('/stolen')</script>&amp;"
FULL = "[UNAVAILABLE reason=queue_full retry_after_ms=1500] the queue is full"


def said(text: str) -> list[Step]:
    """Return the responses of a model that says a text, three characters a token."""
    parts = [text[begin : begin + 3] for begin in range(0, len(text), 3)]
    steps = [response(part, num_output_tokens=1, num_input_tokens=7) for part in parts]
    return [*steps, response("", num_output_tokens=0, finish_reason="stop", final=True)]


def messages_of(server: KServeServer, number: int = -1) -> Any:
    message = server.requests[number]
    tensors = dict(zip((tensor.name for tensor in message.inputs), message.raw_input_contents, strict=True))
    return [(each["role"], each["content"]) for each in json.loads(tensors["messages"][4:])]


class Site:
    """A page of a gateway before a scripted server."""

    def __init__(self, folder: Path, *script: Step, is_dark: bool = False, width: int = 1280, **fields: Any) -> None:
        self.server = KServeServer(*script)
        self._folder, self._look, self._fields = folder, {"is_dark": is_dark, "width": width}, fields

    def __enter__(self) -> PageTab:
        self.server.__enter__()
        self.gateway = RunningGateway(self.server.url, **{"models": (DEMO,), **self._fields})
        self.gateway.__enter__()
        address = self.gateway.url.removesuffix("/v1")
        self.tab = PageTab(address, self._folder / "profile", **self._look)
        return self.tab.__enter__()

    def __exit__(self, *_: object) -> None:
        complaints = self.tab.complaints
        self.tab.__exit__()
        self.gateway.__exit__()
        self.server.__exit__()
        assert complaints == []


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[KeyStore]:
    with KeyStore(tmp_path / "keys.sqlite") as opened:
        yield opened


STREAM = (
    '\ufeffdata: {"a": "ü"}\n\n: a comment\r\ndata: one\r\ndata:two\r\n\r\nevent: x\rdata\r\rdata: 世界\n\ndata: cut'
)


def test_events_are_the_same_wherever_the_bytes_are_cut(tmp_path: Path) -> None:
    with Site(tmp_path, *story()) as tab:
        tab.wait_for_view("chat")
        found = tab.run(
            f"""(async () => {{
              const {{ eventsOf }} = await import("/page/event_stream.js");
              const bytes = new TextEncoder().encode({json.dumps(STREAM)});
              const read = async (...cuts) => {{
                const edges = [0, ...cuts, bytes.length];
                const body = new ReadableStream({{ start(queue) {{
                  for (let at = 1; at < edges.length; at += 1) queue.enqueue(bytes.slice(edges[at - 1], edges[at]));
                  queue.close();
                }} }});
                const events = [];
                for await (const data of eventsOf(body)) events.push(data);
                return JSON.stringify(events);
              }};
              const results = new Set([await read(), await read(...Array(bytes.length).keys())]);
              for (let cut = 1; cut < bytes.length; cut += 1) results.add(await read(cut));
              return [...results];
            }})()"""
        )
        assert [json.loads(each) for each in found] == [['{"a": "ü"}', "one\ntwo", "", "世界"]]


def test_a_chat_without_a_key_is_there_at_once_and_its_figures_are_those_of_usage(tmp_path: Path) -> None:
    site = Site(tmp_path, *story())
    with site as tab:
        tab.wait_for_view("chat")
        assert tab.run("document.activeElement.id") == "message"
        assert tab.run("document.getElementById('sign-out').hidden")
        assert not tab.run("""document.querySelector('nav a[href="#live"]').hidden"""), "everybody here is an admin"
        tab.option("system", "Be brief.")
        tab.option("temperature", "0.5")
        tab.option("seed", "7")
        tab.type("Hi")
        tab.press("Enter", shift=True)
        tab.send("there")
        assert tab.wait_for_answer() == TEXT
        assert (tab.figure("tokens"), tab.figure("end")) == ("4 (prompt 4)", "length")
        assert tab.figure("ttft").endswith("s")
        assert messages_of(site.server) == [("system", "Be brief."), ("user", "Hi\nthere")]
        assert tab.run("document.getElementById('said').textContent") == f"demo has answered: {TEXT}"
        tab.send("Go on")
        tab.wait("document.querySelectorAll('.turn').length === 2")
        tab.wait_for_answer()
        assert messages_of(site.server)[1:] == [("user", "Hi\nthere"), ("assistant", TEXT), ("user", "Go on")]
        named = {role: name for role, name in tab.accessible() if role in {"textbox", "navigation", "list"} and name}
        assert named["navigation"] == "Views"
        assert ("textbox", "Message") in tab.accessible()
        assert ("article", "Answer of demo") in tab.accessible()


def test_what_a_model_says_is_text_and_never_markup(tmp_path: Path) -> None:
    with Site(tmp_path, *said(MARKUP)) as tab:
        tab.wait_for_view("chat")
        tab.send(MARKUP)
        assert tab.wait_for_answer() == MARKUP
        assert tab.run("document.querySelector('.asked .text').textContent") == MARKUP
        assert tab.run("document.querySelectorAll('main img, main script').length") == 0
        assert not [url for url in tab.requests if "stolen" in url or url.endswith("/x")]
        refused = """(() => { try { document.body.innerHTML = "<b>x</b>"; return "done"; }
                     catch (error) { return error.name; } })()"""
        # The browser itself refuses what the page's code never does. The attempt is a complaint, so it comes last.
        assert tab.run(refused) == "TypeError"
        assert "TrustedHTML" in " ".join(tab.complaints)
        tab._events.clear()


def test_reasoning_and_calls_of_tools_are_shown_apart(tmp_path: Path) -> None:
    call = '<tool_call>\n{"name": "weather", "arguments": {"town": "Rome"}}\n</tool_call>'
    text = f"<think>\nThe town is Rome.\n</think>\n\nLet me look.{call}"
    site = Site(tmp_path, *said(text), models=THINKING)
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    with site as tab:
        tab.wait_for_view("chat")
        tab.option("tools", "{not JSON")
        tab.send("Rain?")
        tab.wait("document.querySelector('#chat-options .failure').textContent")
        assert tab.run("document.activeElement.name") == "tools"
        assert tab.run("document.activeElement.getAttribute('aria-invalid')") == "true"
        assert site.server.requests == []
        tab.option("tools", json.dumps([tool]))
        tab.run("document.getElementById('message').focus()")
        tab.press("Enter")
        assert tab.wait_for_answer().strip() == "Let me look."
        reasoning = tab.run(f"document.querySelector('{ANSWER} .reasoning .text').textContent")
        assert reasoning.strip() == "The town is Rome."
        shown = tab.text(f"{ANSWER} .calls li")
        assert shown.startswith("weather(")
        assert json.loads(shown.removeprefix("weather(").removesuffix(")")) == {"town": "Rome"}
        assert tab.figure("end") == "tool_calls"


def test_a_refusal_says_its_code_and_when_to_try_again_and_the_button_waits(tmp_path: Path) -> None:
    site = Site(tmp_path, FULL)
    with site as tab:
        tab.wait_for_view("chat")
        tab.send("Hi")
        assert "the queue is full" in (said_first := tab.failure())
        assert "429 overloaded" in said_first
        tab.wait(f"/in 2 s|in 1 s/.test(document.querySelector('{ANSWER} .failure button').textContent)")
        assert tab.run(f"document.querySelector('{ANSWER} .failure button').disabled")
        site.server.script = tuple(story())
        tab.wait(f"!document.querySelector('{ANSWER} .failure button').disabled")
        tab.run(f"document.querySelector('{ANSWER} .failure button').focus()")
        tab.press("Enter")
        tab.wait(f"document.querySelector('{ANSWER} > .text').textContent === '{TEXT}'")
        assert tab.wait_for_answer() == TEXT
        assert tab.text(f"{ANSWER} .failure") == ""


@pytest.mark.parametrize(
    ("ending", "code"),
    [("[UNAVAILABLE reason=engine_died] it died", "unavailable"), (DIE, "unavailable")],
    ids=["error", "server gone"],
)
def test_an_answer_that_breaks_off_says_so_and_is_no_part_of_the_conversation(
    tmp_path: Path, ending: Step, code: str
) -> None:
    site = Site(tmp_path, story()[0], ending)
    with site as tab:
        tab.wait_for_view("chat")
        tab.send("First")
        assert code in tab.failure()
        assert tab.wait_for_answer() == "Once"
        assert tab.figure("end") == "failed"
        if ending is DIE:
            return
        site.server.script = tuple(story())
        tab.run("document.getElementById('message').focus()")
        tab.send("Second")
        tab.wait("document.querySelectorAll('.turn').length === 2")
        assert tab.wait_for_answer() == TEXT
        assert messages_of(site.server) == [("user", "Second")]


@pytest.mark.parametrize("by", ["Escape", "button"])
def test_a_stop_cancels_the_request_on_the_server_and_keeps_what_came(tmp_path: Path, by: str) -> None:
    site = Site(tmp_path, story()[0], HANG)
    with site as tab:
        tab.wait_for_view("chat")
        tab.send("Hi")
        tab.wait(f"document.querySelector('{ANSWER} > .text')?.textContent === 'Once'")
        assert tab.run(f"document.querySelector('{ANSWER}').getAttribute('aria-busy')") == "true"
        assert tab.figure("tokens") == "≈ 1"
        if by == "button":
            tab.run("document.getElementById('stop').focus()")
            tab.press("Enter")
        else:
            tab.press("Escape")
        assert tab.wait_for_answer() == "Once"
        assert site.server.was_cancelled.wait(10)
        assert tab.figure("end") == "stopped"
        assert tab.text(f"{ANSWER} .failure") == ""
        assert tab.run("document.activeElement.id") == "message"
        site.server.script = tuple(story())
        tab.send("Go on")
        tab.wait("document.querySelectorAll('.turn').length === 2")
        tab.wait_for_answer()
        assert messages_of(site.server) == [("user", "Hi"), ("assistant", "Once"), ("user", "Go on")]


def test_a_key_is_asked_for_kept_in_the_tab_and_forgotten(tmp_path: Path, keys: KeyStore) -> None:
    bob = keys.create(NewKey("bob", models=frozenset({"demo"})))
    site = Site(tmp_path, *story(), keys=keys)
    with site as tab:
        tab.sign_in("tri-wrong")
        tab.wait("document.getElementById('key-failure').textContent")
        assert "invalid_api_key" in tab.text("#key-failure")
        assert tab.run("document.activeElement.id") == "key"
        assert tab.run("document.activeElement.getAttribute('aria-invalid')") == "true"
        assert tab.run("sessionStorage.length") == 0, "a key that is wrong is not kept"
        tab.run("document.getElementById('key').value = ''")
        tab.sign_in("ünd")
        tab.wait("document.getElementById('key-failure').textContent.includes('ASCII')")
        tab.run("document.getElementById('key').value = ''")
        tab.sign_in(bob.text)
        tab.wait_for_view("chat")
        assert tab.run("document.getElementById('key').value") == ""
        assert tab.run("""document.querySelector('nav a[href="#live"]').hidden"""), "a user sees no figures"
        assert tab.run("[...document.querySelectorAll('#chat-options option')].map((each) => each.value)") == ["demo"]
        tab.run("location.hash = 'live'")
        tab.load_again()
        tab.wait_for_view("chat")
        tab.send("Hi")
        assert tab.wait_for_answer() == TEXT
        keys.revoke(bob.id)
        tab.run("document.getElementById('sign-out').focus()")
        tab.press("Enter")
        tab.wait_for_view("sign-in")
        assert tab.run("[sessionStorage.length, localStorage.length, document.cookie]") == [0, 0, ""]
        assert tab.run("document.querySelectorAll('.turn').length") == 0, "the next person at this screen sees nothing"
        assert not [url for url in tab.requests if bob.text in url]
        tab.load_again()
        tab.wait_for_view("sign-in")


def test_two_sides_answer_one_prompt_and_their_figures_are_compared(tmp_path: Path) -> None:
    def play(request: Any) -> list[Step]:
        named = request.parameters["release"].int64_param if "release" in request.parameters else 0
        return said("release two says this" if named == 2 else "release one says that")

    site = Site(tmp_path, play, models=(DEMO, OTHER))
    with site as tab:
        tab.wait_for_view("chat")
        tab.go_to("compare")
        assert tab.run("document.activeElement.id") == "prompt"
        picked = "[...document.querySelectorAll('.side select')].map((each) => each.value)"
        assert tab.run(picked) == ["demo", "other"]
        tab.run("document.querySelector('#right select').value = 'demo'")
        tab.option("release", 1, within="#left")
        tab.option("release", 2, within="#right")
        for is_in_turns in (False, True):
            tab.run(f"document.getElementById('in-turns').checked = {json.dumps(is_in_turns)}")
            tab.run("document.getElementById('prompt').value = ''")
            tab.run("document.getElementById('prompt').focus()")
            tab.send("Who are you?")
            tab.wait("!document.getElementById('compare-stop').hidden || !document.getElementById('compared').hidden")
            tab.wait("!document.getElementById('compared').hidden")
            assert tab.text("#left .answer > .text") == "release one says that"
            assert tab.text("#right .answer > .text") == "release two says this"
            assert (tab.text("#left .by"), tab.text("#right .by")) == ("demo@1", "demo@2")
            assert tab.text("#same-text") == "The texts differ from character 9 on."
            rows = tab.run("[...document.querySelectorAll('#compared tbody tr')].map((row) => row.innerText)")
            assert [row.split("\t")[0] for row in rows] == ["TTFT", "tokens/s", "tokens", "time"]
            assert rows[2].split("\t") == ["tokens", "7", "7", "1.00"]
        asked = [request.parameters["release"].int64_param for request in site.server.requests]
        assert sorted(asked) == [1, 1, 2, 2]
        tab.option("release", "0", within="#left")
        tab.run("document.getElementById('prompt').focus()")
        tab.press("Enter")
        assert tab.run("document.querySelector('#left [name=release]').validity.rangeUnderflow")
        assert len(site.server.requests) == 4


def test_two_prompts_may_not_run_at_once_and_a_stop_stops_both(tmp_path: Path) -> None:
    site = Site(tmp_path, story()[0], HANG)
    with site as tab:
        tab.wait_for_view("chat")
        tab.go_to("compare")
        tab.send("Hi")
        both = "[...document.querySelectorAll('.side .answer > .text')].map((each) => each.textContent).join()"
        tab.wait(f"{both} === 'Once,Once'")
        tab.press("Enter")
        tab.press("Escape")
        tab.wait("document.getElementById('compare-stop').hidden")
        ends = "[...document.querySelectorAll('.side .end')].map((each) => each.textContent)"
        assert tab.run(ends) == ["stopped", "stopped"]
        assert len(site.server.requests) == 2
        assert tab.run("document.getElementById('compared').hidden")


METRICS = """\
trireme_engine_up{{model="tensorrt_llm",version="1"}} 1
trireme_engine_up{{model="tensorrt_llm",version="2"}} 1
trireme_requests_running{{model="tensorrt_llm",version="1"}} 3
trireme_requests_waiting{{model="tensorrt_llm",version="1"}} 2
trireme_engine_max_num_seqs{{model="tensorrt_llm",version="1"}} 64
trireme_kv_cache_usage_fraction{{model="tensorrt_llm",version="1"}} 0.625
trireme_engine_output_tokens_total{{model="tensorrt_llm",version="1"}} {tokens}
"""
PLAN = Plan(candidate=2, stable=1, release={}, salt="s", shares=(0.05, 0.25, 1.0), step_requests=10)


@pytest.fixture
def rollouts(tmp_path: Path) -> Path:
    place = tmp_path / "rollouts.sqlite"
    with Store(place) as store:
        begun = store.begin("demo", msgspec.json.encode(PLAN).decode(), why="half the memory")
        store.enter(begun.id, Phase.RUNNING, why="share 2 of 3", step=1)
    return place


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360], ids=["desk", "phone"])
def test_every_view_can_be_read_and_scrolls_in_one_direction(
    tmp_path: Path, keys: KeyStore, rollouts: Path, *, is_dark: bool, width: int
) -> None:
    admin = keys.create(NewKey("ann", role=Role.ADMIN))
    long = "word " * 60 + "x" * 300
    with (
        metrics_page(lambda: METRICS.format(tokens=10)) as page,
        Site(
            tmp_path, *said(long), keys=keys, metrics_urls=(page,), rollouts=rollouts, is_dark=is_dark, width=width
        ) as tab,
    ):
        background = tab.run("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") != is_dark
        tab.sign_in("tri-wrong")
        tab.wait("document.getElementById('key-failure').textContent")
        tab.check_contrasts()
        tab.check_names()
        tab.check_width()
        tab.run("document.getElementById('key').value = ''")
        tab.sign_in(admin.text)
        tab.wait_for_view("chat")
        tab.run("document.getElementById('chat-options').open = true")
        tab.run("document.getElementById('message').focus()")
        tab.send(long)
        assert tab.wait_for_answer() == long
        tab.check_contrasts()
        tab.check_names()
        tab.check_width()
        tab.go_to("compare")
        tab.run("document.getElementById('compare-options').open = true")
        tab.send(long)
        tab.wait("!document.getElementById('compared').hidden")
        tab.check_contrasts()
        tab.check_names()
        tab.check_width()
        tab.go_to("live")
        tab.wait("document.querySelectorAll('#servers tbody tr').length === 2")
        tab.check_contrasts()
        tab.check_names()
        tab.check_width()


def test_the_figures_move_until_they_are_paused(tmp_path: Path, rollouts: Path) -> None:
    num_tokens = 0

    def text() -> str:
        nonlocal num_tokens
        num_tokens += 500
        return METRICS.format(tokens=num_tokens)

    go_on = threading.Event()
    with (
        metrics_page(text) as page,
        Site(tmp_path, story()[0], go_on, *story()[1:], metrics_urls=(page,), rollouts=rollouts) as tab,
    ):
        tab.wait_for_view("chat")
        tab.send("Hi")
        tab.wait(f"document.querySelector('{ANSWER} > .text')?.textContent === 'Once'")
        tab.go_to("live")
        tab.wait("document.querySelector('#tiles dd')?.textContent === '1'")  # a request runs
        texts = "[...row.cells].map((cell) => cell.innerText.trim())"
        cells = f"[...document.querySelectorAll('#servers tbody tr')].map((row) => {texts})"
        tab.wait(f"Number({cells}[0].at(-1)) > 0")
        first, second = tab.run(cells)
        assert first[1:3] == ["takes requests", "1"]
        assert first[3:8] == ["demo", "1", "3 of 64", "2", "63 %"]
        assert second == ["demo", "2", "–", "–", "–", "–"], "what an engine does not tell is not 0"
        assert tab.run("document.querySelector('.gauge i').style.width") == "62.5%"
        rollout = tab.text("#rollout")
        assert "canary of demo" in rollout
        assert "2 gets 25 % of the requests, beside 1" in rollout
        assert "trireme rollout run goes on with it" in rollout
        assert tab.text("#rollout [aria-current=step]") == "25 %"
        go_on.set()
        tab.wait("document.querySelector('#tiles dd')?.textContent === '0'")
        tab.run("document.getElementById('pause').focus()")
        tab.press("Enter")
        assert tab.run("document.getElementById('pause').getAttribute('aria-pressed')") == "true"
        shown = tab.text("#live-at")
        tab.run("new Promise((done) => setTimeout(done, 2500))")
        assert tab.text("#live-at") == shown
        tab.press("Enter")
        tab.wait(f"document.getElementById('live-at').innerText !== '{shown}'")


def test_what_nobody_connected_is_said_with_the_option_that_does(tmp_path: Path) -> None:
    with Site(tmp_path, *story()) as tab:
        tab.wait_for_view("chat")
        tab.go_to("live")
        tab.wait("document.querySelector('#servers .missing')")
        assert tab.text("#servers .missing") == "not connected"
        assert "--metrics-url HOST:PORT" in tab.text("#servers-note")
        assert "--rollouts STORE" in tab.text("#rollout")
        assert tab.run("[...document.querySelectorAll('#tiles dd')].map((each) => each.textContent)")[-4:] == [
            "–", "not connected", "–", "not told",
        ]  # fmt: skip


def test_a_key_that_is_revoked_while_its_figures_are_shown_leads_to_the_sign_in(tmp_path: Path, keys: KeyStore) -> None:
    admin = keys.create(NewKey("ann", role=Role.ADMIN))
    site = Site(tmp_path, *story(), keys=keys)
    with site as tab:
        tab.sign_in(admin.text)
        tab.wait_for_view("chat")
        tab.go_to("live")
        tab.wait("document.getElementById('live-at').textContent")
        assert site.gateway.call("GET", "/admin/status", Authorization=bearer(admin)).status == 200
        keys.revoke(admin.id)
        tab.wait_for_view("sign-in")
        assert "key_revoked" in tab.text("#key-failure")
        assert tab.run("sessionStorage.length") == 0


def test_the_keyboard_alone_reaches_everything_in_the_order_in_which_it_is_seen(tmp_path: Path) -> None:
    with Site(tmp_path, *story()) as tab:
        tab.wait_for_view("chat")
        tab.run("document.querySelector('.skip').focus()")
        met = []
        for _ in range(14):
            tab.press("Tab")
            name = "document.activeElement.name || document.activeElement.id || document.activeElement.textContent"
            met.append(tab.run(f"({name}).trim()"))
            outline = tab.run(
                "(() => { const at = document.activeElement, box = at.closest('.composer');"
                " return [at, box].some((each) => each && getComputedStyle(each).outlineStyle !== 'none'); })()"
            )
            assert outline, met
        assert met[:6] == ["Chat", "Compare", "Live", "message", "new-chat", "send"]
        assert met[6:] == ["Options", "model", "release", "temperature", "max_tokens", "seed", "system", "tools"]


def test_a_model_that_makes_embeddings_is_offered_nowhere(tmp_path: Path) -> None:
    with Site(tmp_path, *story(), models=(embedding_model(), DEMO)) as tab:
        tab.wait_for_view("chat")
        for view in ("chat-options", "left"):
            found = tab.run(f"[...document.querySelectorAll('#{view} option')].map((each) => each.value)")
            assert found == ["demo"]
