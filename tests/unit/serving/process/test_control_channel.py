# SPDX-License-Identifier: Apache-2.0
"""The questions of `trireme serve` to adapters; whatever happens to one question, the next is answered."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from serving.process import control_channel
from serving.process.control_channel import ControlChannel, Pulse, ask_all, feel_pulse, generation_handlers, tell_left
from serving.process.left_streams import LeftStreams
from serving.process.run_dir import RUN_DIR_VARIABLE
from trireme.base.errors import ServingError, Unavailable

ARGS = {"model_name": "m", "model_version": "1"}

Open = Callable[..., ControlChannel]


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(RUN_DIR_VARIABLE, str(tmp_path))
    return tmp_path


@pytest.fixture
def open_line(run_dir: Path) -> Iterator[Open]:
    """Yield a function to open adapters: `open_line(2, name="tensorrt_llm")` opens one that holds two streams."""
    lines: list[ControlChannel] = []

    def start(
        num_streams: int = 0, *, name: str = "m", **handlers: Callable[[], Mapping[str, object]]
    ) -> ControlChannel:
        assert run_dir.is_dir()
        status = {"status": lambda: {"num_streams": num_streams}}
        lines.append(ControlChannel(ARGS | {"model_name": name}, status | handlers))
        return lines[-1]

    yield start
    for line in lines:
        line.close()
    deadline_s = time.monotonic() + 5
    while any(thread.name.startswith("rpc ") for thread in threading.enumerate()):
        assert time.monotonic() < deadline_s, "a closed line is still served"
        time.sleep(0.005)


def test_every_adapter_is_asked_and_their_streams_are_added(run_dir: Path, open_line: Open) -> None:
    assert ask_all(run_dir, "status") == 0
    open_line(2, name="tensorrt_llm")
    open_line(3, name="postprocessing")
    assert ask_all(run_dir, "status") == 5


def test_an_operation_that_an_adapter_does_not_have_is_answered_with_its_status(run_dir: Path, open_line: Open) -> None:
    asked: list[str] = []

    def drain() -> Mapping[str, object]:
        asked.append("drain")
        return {"num_streams": 1}

    open_line(2, name="a", drain=drain)
    open_line(2, name="b")
    assert ask_all(run_dir, "drain") == 3
    assert asked == ["drain"]


def test_neither_a_deep_folder_nor_a_long_name_of_a_model_keeps_it_from_being_asked(
    run_dir: Path, open_line: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = run_dir / ("job" * 40)
    deep.mkdir()
    monkeypatch.setenv(RUN_DIR_VARIABLE, str(deep))
    name = "m" * 64 + "_tensorrt_llm_bls"
    open_line(2, name=name)
    [path] = deep.iterdir()
    assert path.match(f"{name}-1-*.sock")
    assert ask_all(deep, "status") == 2
    assert feel_pulse(path, timeout_s=5) is Pulse.ALIVE


def test_without_a_run_dir_there_is_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RUN_DIR_VARIABLE, raising=False)
    line = ControlChannel(ARGS, {})
    assert list(tmp_path.iterdir()) == []
    line.close()


def test_a_closed_line_is_not_asked_any_more(run_dir: Path, open_line: Open) -> None:
    open_line(2, name="a")
    open_line(3, name="b").close()
    assert ask_all(run_dir, "status") == 2


def test_a_model_that_is_loaded_again_has_a_line_again(run_dir: Path, open_line: Open) -> None:
    # Triton loads the new instance of a version before it unloads the old one, or after it.
    old = open_line(1)
    new = open_line(2)
    assert ask_all(run_dir, "status") == 3
    old.close()
    assert ask_all(run_dir, "status") == 2
    new.close()
    open_line(4)
    assert ask_all(run_dir, "status") == 4


def test_an_adapter_that_is_gone_is_named(run_dir: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(run_dir / "tensorrt_llm-1.sock"))
    with pytest.raises(Unavailable, match="tensorrt_llm-1 does not answer 'status'") as caught:
        ask_all(run_dir, "status")
    assert caught.value.facts == {"reason": "no_answer"}


def test_the_streams_of_the_others_can_be_counted_without_one_that_is_gone(run_dir: Path, open_line: Open) -> None:
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(run_dir / "ensemble_canary-2-ab12.sock"))
    open_line(3, name="tensorrt_llm")
    with pytest.raises(Unavailable, match="ensemble_canary-2"):
        ask_all(run_dir, "status")
    assert ask_all(run_dir, "status", is_without_dead=True) == 3


def test_a_pulse_tells_the_living_the_dead_the_silent_and_the_unloaded_apart(run_dir: Path, open_line: Open) -> None:
    open_line()
    [alive] = run_dir.glob("*.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(run_dir / "dead.sock"))
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(run_dir / "silent.sock"))
        silent.listen()
        pulses = [feel_pulse(run_dir / name, timeout_s=0.05) for name in ("dead.sock", "silent.sock", "none.sock")]
    assert pulses == [Pulse.DEAD, Pulse.SILENT, Pulse.CLOSED]
    assert feel_pulse(alive, timeout_s=5) is Pulse.ALIVE


def test_an_adapter_that_is_stuck_is_not_waited_for(
    run_dir: Path, open_line: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_channel, "_ANSWER_S", 0.05)
    is_free = threading.Event()

    def hang() -> Mapping[str, object]:
        is_free.wait(5)
        return {"num_streams": 0}

    open_line(1, drain=hang)
    with pytest.raises(Unavailable):
        ask_all(run_dir, "drain")
    is_free.set()
    wait_until(lambda: answers(run_dir) == 1)


def test_an_adapter_that_cannot_answer_says_so_and_is_asked_again(
    run_dir: Path, open_line: Open, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> Mapping[str, object]:
        raise RuntimeError("broken")

    open_line(1, drain=fail)
    with pytest.raises(Unavailable, match=r"m-1-.* does not answer 'drain': .*broken"):
        ask_all(run_dir, "drain")
    assert "Traceback" in caplog.text
    assert ask_all(run_dir, "status") == 1


def test_the_streams_of_clients_that_have_left_are_noted(
    run_dir: Path, open_line: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = LeftStreams()
    monkeypatch.setattr(control_channel, "LEFT_STREAMS", left)
    open_line()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(run_dir / "dead.sock"))
    tell_left(run_dir, ["a", "b"])
    assert [name in left for name in ("a", "b", "c")] == [True, True, False]


class Service:
    """The part of a service that the handlers need."""

    def __init__(self) -> None:
        self.num_running = 2
        self.calls: list[tuple[str, ServingError]] = []

    def refuse_new(self, because: Unavailable) -> None:
        self.calls.append(("refuse_new", because))

    def cancel_all(self, because: ServingError) -> None:
        self.calls.append(("cancel_all", because))


def test_the_engine_step_can_be_asked_to_drain_and_to_cancel() -> None:
    service = Service()
    handlers = generation_handlers(service)
    assert [json.loads(json.dumps(handlers[name]())) for name in ("status", "drain", "cancel")] == [
        {"num_streams": 2}
    ] * 3
    assert [(name, error.facts["reason"]) for name, error in service.calls] == [
        ("refuse_new", "draining"),
        ("cancel_all", "shutdown"),
    ]


def answers(run_dir: Path) -> int | None:
    try:
        return ask_all(run_dir, "status")
    except Unavailable:
        return None


def wait_until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "did not happen in time"
        time.sleep(0.005)
