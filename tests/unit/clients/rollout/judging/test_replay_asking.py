# SPDX-License-Identifier: Apache-2.0
"""The replay of held-out prompts: both releases are asked greedily, few at a time, again where there is no room."""

import gc
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from kserve_server import HANG, KServeServer, Step, response

from clients.rollout.judging import replay as asking
from clients.rollout.judging.replay import PromptScores, Target, replay
from clients.rollout.records.held_out import Prompt
from trireme.base.errors import QueueFull, ServerError, Unavailable

PROMPTS = tuple(Prompt(name=f"p{number}", text=f"What is {number}?", max_tokens=5) for number in range(6))


def inputs(request: Any) -> dict[str, Any]:
    """Return the values of a request's tensors, by name."""
    found: dict[str, Any] = {}
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        found[tensor.name] = raw[4:].decode() if tensor.datatype == "BYTES" else struct.unpack(
            {"INT32": "<i", "BOOL": "<?", "FP32": "<f"}[tensor.datatype], raw
        )[0]  # fmt: skip
    return found


def says(answer: Callable[[str, str], list[Step]]) -> Callable[[Any], list[Step]]:
    return lambda request: answer(request.model_name, inputs(request)["text_input"])


def text(words: str) -> list[Step]:
    return [response(words, final=True)]


def arms(server: KServeServer) -> dict[str, Target]:
    return {
        "stable": Target(server.url, "ensemble"),
        "candidate": Target(server.url, "ensemble_canary"),
    }


def asked(server: KServeServer, prompts: tuple[Prompt, ...] = PROMPTS, *, num_at_a_time: int = 2) -> list[PromptScores]:
    """Return all scores of a replay, sorted by the prompts' names."""
    batches = replay(prompts, **arms(server), num_at_a_time=num_at_a_time)
    return sorted((one for batch in batches for one in batch), key=lambda one: one.name)


def test_each_prompt_is_asked_greedily_and_the_stable_release_twice_without_a_reference() -> None:
    with_one = Prompt(name="r", text="And now?", reference="What is it", max_tokens=7)
    with KServeServer(says(lambda _, prompt: text(f"{prompt} It is."))) as server:
        found = asked(server, (*PROMPTS, with_one))
    assert [one.name for one in found] == [*(prompt.name for prompt in PROMPTS), "r"]
    assert {(one.candidate, one.stable) for one in found[:-1]} == {(1.0, 1.0)}
    assert found[-1].candidate == found[-1].stable
    counted = Counter((request.model_name, inputs(request)["text_input"]) for request in server.requests)
    assert counted == {
        **{("ensemble", prompt.text): 2 for prompt in PROMPTS},
        **{("ensemble_canary", prompt.text): 1 for prompt in PROMPTS},
        ("ensemble", "And now?"): 1,
        ("ensemble_canary", "And now?"): 1,
    }
    first = inputs(server.requests[0])
    assert (first["top_k"], first["max_tokens"], first["exclude_input_in_output"]) == (1, 5, True)
    assert "temperature" not in first


def test_wrong_text_scores_low_and_an_error_nothing() -> None:
    def answer(model: str, prompt: str) -> list[Step]:
        if model == "ensemble":
            return text("The answer is four.")
        return [str(ServerError("it broke"))] if prompt == PROMPTS[0].text else text("#%&!")

    with KServeServer(says(answer)) as server:
        found = asked(server)
    assert found[0] == PromptScores(name="p0", candidate=0.0, stable=1.0, candidate_error="INTERNAL")
    assert {(one.candidate, one.stable, one.candidate_error) for one in found[1:]} == {(0.0, 1.0, "")}


@pytest.mark.parametrize("num_at_a_time", [1, 3])
def test_no_more_are_in_flight_than_was_said(num_at_a_time: int) -> None:
    lock, running, most = threading.Lock(), 0, 0

    def answer(request: Any) -> list[Step]:
        nonlocal running, most
        del request
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1
        return text("yes")

    with KServeServer(answer) as server:
        assert len(asked(server, num_at_a_time=num_at_a_time)) == len(PROMPTS)
    assert most == num_at_a_time


def test_a_server_without_room_is_asked_again_and_it_costs_no_score() -> None:
    refused: set[str] = set()

    def answer(model: str, prompt: str) -> list[Step]:
        if model + prompt in refused:
            return text("yes")
        refused.add(model + prompt)
        return [str(QueueFull("come back", reason="queue_full", retry_after_ms=1))]

    with KServeServer(says(answer)) as server:
        found = asked(server)
    assert {(one.candidate, one.stable, one.candidate_error, one.stable_error) for one in found} == {(1.0, 1.0, "", "")}
    assert len(refused) == 2 * len(PROMPTS)


def test_a_server_that_never_has_room_is_waited_for_as_one_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_ROOM_S", 0.05)
    full = str(QueueFull("come back", reason="queue_full", retry_after_ms=10))
    with KServeServer(full) as server, pytest.raises(Unavailable, match=r"had no room for a held-out prompt"):
        asked(server)


@pytest.mark.parametrize(
    ("model", "reason"),
    [("ensemble", "engine_restarting"), ("ensemble", "draining"), ("ensemble_canary", "draining")],
)
def test_a_server_that_goes_or_a_stable_engine_that_comes_back_is_nobodys_fault(
    model: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(name: str, prompt: str) -> list[Step]:
        del prompt
        return [str(Unavailable("not now", reason=reason))] if name == model else text("yes")

    gc.collect()  # what other tests have left is told of now
    caplog.clear()
    with KServeServer(says(answer)) as server, pytest.raises(Unavailable, match="not now"):
        asked(server)
    gc.collect()
    # Several requests end so at once, and asyncio tells of those that nobody asked about.
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def test_a_candidate_whose_engine_comes_back_has_not_answered() -> None:
    def answer(name: str, prompt: str) -> list[Step]:
        del prompt
        is_candidate = name == "ensemble_canary"
        return [str(Unavailable("not now", reason="engine_restarting"))] if is_candidate else text("yes")

    with KServeServer(says(answer)) as server:
        assert {(one.candidate, one.candidate_error) for one in asked(server)} == {
            (0.0, "UNAVAILABLE engine_restarting")
        }


def test_nobody_there_is_waited_for() -> None:
    with KServeServer() as server:
        pass
    with pytest.raises(Unavailable):
        asked(server)


def test_what_runs_is_cancelled_when_nobody_wants_it_any_more() -> None:
    with KServeServer(HANG) as server:
        batches = replay(PROMPTS, **arms(server), num_at_a_time=2)
        assert next(batches) == [], "it comes back though nothing was answered"
        batches.close()
        assert server.was_cancelled.wait(5)
