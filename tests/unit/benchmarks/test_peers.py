# SPDX-License-Identifier: Apache-2.0
"""Peers are measured on the same prompts, by turns, and only where they count tokens alike; what they started ends."""

import contextlib
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
import yaml
from completions_server import DONE, CompletionsServer, event

from benchmarks.peers import child_server
from benchmarks.peers.child_server import serving
from benchmarks.peers.cpu_parts import ENGINE, FRONT_DOOR, SERVER, behind, cpu_by_part
from benchmarks.peers.figures import Figures, figures, ratios
from benchmarks.peers.peer import Answered, AskedServer, Started
from benchmarks.peers.rounds import Plan, measure
from benchmarks.peers.shown import draw, rows
from benchmarks.support.in_process import InProcess
from benchmarks.support.workload import Ask
from clients.load.load_options import Load
from clients.load_run.load_record import DONE as ENDED
from clients.load_run.load_record import LoadRecord
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.spec.deployment import load_deployment
from serving.text.tokenization import PromptTokenizer
from trireme.base.errors import ServerError

pytestmark = pytest.mark.slow

TOKENIZER = load_deployment(DEFAULT_DEPLOYMENT).model.tokenizer
PLAN = Plan(
    users=(1, 3), num_rounds=2, num_requests=4, input_tokens=16, output_tokens=4, seed=1,
    tokenizer_dir=str(TOKENIZER.dir),
)  # fmt: skip


def record(session: int = 0, *, num_tokens: int = 4, token_ms: int = 10, end: str = ENDED) -> LoadRecord:
    sent_ns = session * 1_000_000_000
    times_ns = [sent_ns + (number + 1) * token_ms * 1_000_000 for number in range(num_tokens)]
    return LoadRecord(
        session=session, due_ns=sent_ns, sent_ns=sent_ns, end_ns=times_ns[-1], end=end, times_ns=times_ns,
        tokens=[1] * num_tokens,
    )  # fmt: skip


class FakePeer:
    """Answers at a speed of its own, and notes what it is asked."""

    precision = "none"
    needs: tuple[Path, ...] = ()
    version = "1"
    settings = "fake"

    def __init__(
        self, name: str, log: list[str], *, beside: str | None = None, token_ms: int = 10, more: int = 0
    ) -> None:
        self.name = name
        self.beside = beside
        self.prompts: list[str] = []
        self._log = log
        self._token_ms = token_ms
        self._more = more
        self._tokenizer = PromptTokenizer.from_spec(TOKENIZER)

    @contextlib.contextmanager
    def started(self) -> Iterator[Started]:
        self._log.append(self.name)
        yield self
        self._log.append(f"end of {self.name}")

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text)) + self._more

    def put_on(self, load: Load) -> Answered:
        self.prompts += [turn.text for session in load.plan() for turn in session.turns]
        return Answered([record(number, token_ms=self._token_ms) for number in range(4)], [], 0.5)


def test_sides_are_measured_by_turns_each_alone_on_the_same_prompts_of_which_none_comes_twice() -> None:
    log: list[str] = []
    peers = [FakePeer("ours", log), FakePeer("other", log, beside="ours", token_ms=20)]
    *_, sides = measure(peers, PLAN, tell=lambda _: None)
    order = ["ours", "other", "other", "ours"]
    assert log == [word for name in order for word in (name, f"end of {name}")]
    assert peers[0].prompts == peers[1].prompts
    assert len(set(peers[0].prompts)) == len(peers[0].prompts)
    found = {(row["side"], row["users"]): row for row in rows(sides, peers)}
    assert "ours_over_it" not in found["ours", 1]
    # A token in 10 ms over one in 20 ms.
    assert found["other", 3]["ours_over_it"]["tpot_p50_ms"]["median"] == pytest.approx(0.5)
    assert found["other", 3]["server_cpu_s_per_1000_tokens"]["median"] == pytest.approx(1000 * 0.5 / 16)


def test_a_side_that_counts_other_tokens_is_refused() -> None:
    peers = [FakePeer("ours", []), FakePeer("other", [], beside="ours", more=1)]
    with pytest.raises(ServerError, match=r"other counts \d+ tokens in .* does not serve the same model"):
        list(measure(peers, PLAN, tell=lambda _: None))


@pytest.mark.parametrize(
    "bad", [record(1, end="UNAVAILABLE"), record(1, num_tokens=3)], ids=["a failed request", "a short answer"]
)
def test_what_is_not_comparable_is_no_figure(bad: LoadRecord) -> None:
    with pytest.raises(ServerError, match="all of them have to end with 4"):
        figures(Answered([record(), bad], [], None), PLAN.load(1, 0), output_tokens=4)


def test_ratios_are_ours_over_theirs_within_a_round() -> None:
    def of(tokens_per_s: float, ttft_ms: float) -> Figures:
        return Figures(
            tokens_per_s=tokens_per_s, ttft_p50_ms=ttft_ms, ttft_p99_ms=1, tpot_p50_ms=1, tokens_per_chunk=1,
            client_cpu_share=None, server_cpu_s_per_1000_tokens=None,
        )  # fmt: skip

    found = ratios([of(200, 5), of(100, 5)], [of(100, 10), of(50, 10)])
    assert found["tokens_per_s"] == {"median": 2, "low": 2, "high": 2}
    assert found["ttft_p50_ms"]["median"] == 0.5


def test_a_server_of_openais_api_is_asked_by_the_load_client_and_says_what_it_counts() -> None:
    answer = [event("x"), event("y", finish_reason="length"), event(None, usage=(7, 2)), DONE]
    with CompletionsServer(*answer) as server:
        cpu_s = itertools.count(1.0)
        asked = AskedServer(server.url, "mine", version="", settings="", cpu_s=lambda: next(cpu_s))
        answered = asked.put_on(PLAN.load(3, 0))
        assert len(answered.records) == 24, "8 for each user"
        assert {one.body["model"] for one in server.asked} == {"mine"}
        assert answered.server_cpu_s == 1.0
        assert len(answered.client_cpu) == 1
    with CompletionsServer() as server:
        asked = AskedServer(server.url, "mine", version="", settings="", cpu_s=lambda: 0.0)
        with pytest.raises(ServerError, match="does not say how many tokens"):  # what answers a probe has no count
            asked.count("a b")


def test_the_closed_loop_in_process_has_so_many_users_who_ask_at_once_when_they_are_answered(tmp_path: Path) -> None:
    spec = yaml.safe_load(DEFAULT_DEPLOYMENT.read_text())
    spec["tokenizer"]["dir"] = str(TOKENIZER.dir)
    spec["engine"] = {"provider": "simulated", "step_ms": 1}
    path = tmp_path / "deployment.yaml"
    path.write_text(yaml.safe_dump(spec))
    records = InProcess(path).run(Ask([f"a house {number}" for number in range(7)], 4, num_users=2))
    assert [one.session for one in records] == list(range(7))
    assert {(one.end, one.output_tokens) for one in records} == {(ENDED, 4)}
    moments = sorted([(one.sent_ns, 1) for one in records] + [(one.end_ns, -1) for one in records])
    assert max(itertools.accumulate(change for _, change in moments)) == 2
    all_at_once = InProcess(path).run(Ask(["a house", "a tree", "a fox"], 4))
    assert max(one.sent_ns for one in all_at_once) < min(one.times_ns[0] for one in all_at_once)


def test_a_server_that_ends_before_it_is_ready_is_told_with_its_last_lines() -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no such model')"]
    with (
        pytest.raises(ServerError, match=r"did not become ready.*\nno such model"),
        serving(command, ready=lambda: False),
    ):
        pass


def test_all_that_a_server_started_ends_with_it_and_its_cpu_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_server, "_STOP_S", 0.2)
    child = "import time; sum(range(5 * 10**7)); print(flush=True); time.sleep(60)"
    parent = (
        "import signal, subprocess, sys\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}])\nchild.wait()"
    )
    before = set(psutil.Process().children(recursive=True))

    def started() -> set[psutil.Process]:
        return set(psutil.Process().children(recursive=True)) - before

    with serving([sys.executable, "-c", parent], ready=lambda: len(started()) == 2) as cpu_s:
        processes = started()
        deadline_s = time.monotonic() + 20
        while cpu_s() < 0.1 and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert cpu_s() >= 0.1, "the child's too"
    gone, alive = psutil.wait_procs(processes, timeout=5)
    assert len(gone) == 2
    assert not alive


def test_a_picture_has_a_line_for_each_side(tmp_path: Path) -> None:
    peers = [FakePeer("ours", []), FakePeer("other", [], beside="ours")]
    *_, sides = measure(peers, PLAN, tell=lambda _: None)
    path = tmp_path / "peers.png"
    draw(rows(sides, peers), {"both": ["ours", "other"]}, {"tokens_per_s": "output tokens/s"}, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_parts_of_a_server_are_counted_while_the_load_is_on_and_are_told_by_the_token() -> None:
    answer = [event("x"), event("y", finish_reason="length"), event(None, usage=(7, 2)), DONE]
    with CompletionsServer(*answer) as server:
        cpu_s, parts_s = itertools.count(1.0), itertools.count(10.0)
        asked = AskedServer(
            server.url, "mine", version="", settings="", cpu_s=lambda: next(cpu_s),
            cpu_parts_s=lambda: {ENGINE: 5.0, FRONT_DOOR: next(parts_s)},
        )  # fmt: skip
        answered = asked.put_on(PLAN.load(3, 0))
    assert answered.cpu_parts_s == {ENGINE: 0.0, FRONT_DOOR: 1.0}
    found = figures(answered, PLAN.load(3, 0), output_tokens=2)
    # A core second for 24 answers of two tokens.
    assert found.tokens_per_core_s == pytest.approx(48)
    assert found.cpu_parts_s_per_1000_tokens == {ENGINE: 0.0, FRONT_DOOR: pytest.approx(1000 / 48)}


def test_processes_fall_into_parts_by_their_command_lines() -> None:
    part_of = behind("trireme gateway serve")
    assert part_of(["python", "-m", "serving.engine_process.engine_loop", "--release", "x"]) == ENGINE
    assert part_of(["python", "-m", "trireme", "gateway", "serve", "--url", "x"]) == FRONT_DOOR
    assert part_of(["python", "-m", "trireme", "serve", "--gateway"]) == SERVER
    used = "sum(range(5 * 10**7)); print(flush=True); import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", used], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        gone = psutil.Process(process.pid)
        found = cpu_by_part([gone], lambda command: ENGINE if used in command else SERVER)
        process.kill()
    assert found[ENGINE] > 0.1
    assert found[SERVER] == found[FRONT_DOOR] == 0
    assert cpu_by_part([gone], lambda _: ENGINE) == dict.fromkeys((FRONT_DOOR, SERVER, ENGINE), 0.0)


def test_a_load_of_a_time_has_no_number_of_requests() -> None:
    timed = msgspec.structs.replace(PLAN, seconds=6.0)
    load, warmup = timed.load(3, 0), timed.load(3, 0, is_warmup=True)
    assert (load.num_requests, load.duration_s) == (None, 6.0)
    assert (warmup.num_requests, warmup.duration_s) == (None, 1.0)
    assert (PLAN.load(3, 0).num_requests, PLAN.load(3, 0).duration_s) == (24, None)
