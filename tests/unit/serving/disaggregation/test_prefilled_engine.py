# SPDX-License-Identifier: Apache-2.0
"""The way of a request to its engine by way of a prefill server, with an engine and servers that only note."""

from collections.abc import Callable

import numpy as np
import pytest

from serving.disaggregation.prefilled_engine import PrefilledEngine, refuse_handed_over
from serving.engines.seam.base import GenerationRequest, SamplingParams
from serving.requests.prompt_batch import Row
from trireme.base.errors import RequestError, Unavailable


class NotingEngine:
    """An engine's connection."""

    def __init__(self) -> None:
        self.is_up = True
        self.submitted: list[tuple[int, bytes | None, str]] = []
        self.cancelled: list[int] = []

    def submit(self, request: GenerationRequest, *, request_id: str = "") -> None:
        if not self.is_up:
            raise Unavailable("no engine", reason="engine_restarting")
        self.submitted.append((request.key, request.sampling.context_phase_params, request_id))

    def cancel(self, key: int) -> None:
        self.cancelled.append(key)


class NotingServers:
    """Prefill servers that answer when a test says."""

    def __init__(self) -> None:
        self.asked: dict[int, Callable[[bytes | None], None]] = {}
        self.cancelled: list[int] = []

    def takes(self, request: GenerationRequest) -> bool:
        return len(request.input_ids) > 2

    def ask(self, key: int, row: Row, then: Callable[[bytes | None], None], *, request_id: str = "") -> None:
        assert row["input_ids"].size > 2
        assert request_id == f"id {key}"
        self.asked[key] = then

    def cancel(self, key: int) -> None:
        self.cancelled.append(key)


class Made:
    """An engine behind servers, and the requests that failed late."""

    def __init__(self) -> None:
        self.engine, self.servers = NotingEngine(), NotingServers()
        self.failed: list[tuple[int, str]] = []
        self.prefilled = PrefilledEngine(
            self.engine,  # type: ignore[arg-type]
            self.servers,  # type: ignore[arg-type]
            lambda key, exc: self.failed.append((key, str(exc))),
        )

    def submit(self, key: int, num_tokens: int = 3) -> bool:
        request = GenerationRequest(key=key, input_ids=[5] * num_tokens, sampling=SamplingParams(max_tokens=4))
        return self.prefilled.submit(request, {"input_ids": np.full((1, num_tokens), 5)}, request_id=f"id {key}")


def test_a_prompt_that_is_taken_reaches_the_engine_with_what_was_handed_over() -> None:
    made = Made()
    assert made.submit(1)
    assert made.engine.submitted == []
    made.servers.asked[1](b"phase")
    assert made.engine.submitted == [(1, b"phase", "id 1")]
    assert made.submit(2)
    made.servers.asked[2](None)
    assert made.engine.submitted[-1] == (2, None, "id 2")
    assert made.engine.cancelled == []


def test_a_prompt_that_is_not_taken_is_the_callers() -> None:
    made = Made()
    assert not made.submit(1, num_tokens=2)
    made.engine.is_up = False  # a request behind a dead engine is refused at once, not after its prefill
    assert not made.submit(2)
    assert made.servers.asked == {}


def test_a_cancelled_request_is_handed_to_the_engine_and_cancelled_there() -> None:
    made = Made()
    assert made.submit(1)
    assert made.prefilled.cancel(1)
    assert made.servers.cancelled == [1]
    assert made.engine.submitted == []
    assert made.engine.cancelled == []
    made.servers.asked[1](b"it was there already")
    assert made.engine.submitted == [(1, b"it was there already", "id 1")]
    assert made.engine.cancelled == [1]
    assert not made.prefilled.cancel(1), "from here on it is the engine's"


def test_a_cancel_while_the_request_is_handed_to_the_engine_reaches_the_engine_behind_the_request() -> None:
    made = Made()
    assert made.submit(1)
    seen: list[str] = []

    def submit(request: GenerationRequest, *, request_id: str = "") -> None:
        assert request_id == "id 1"
        assert made.prefilled.cancel(request.key), "the engine does not know the key yet"
        seen.append("submitted")

    made.engine.submit = submit  # type: ignore[method-assign]
    made.engine.cancel = lambda key: seen.append(f"cancelled {key}")  # type: ignore[method-assign]
    made.servers.asked[1](b"phase")
    assert seen == ["submitted", "cancelled 1"]


def test_a_request_whose_engine_died_meanwhile_is_forgotten() -> None:
    made = Made()
    assert made.submit(1)
    assert made.submit(2)
    made.prefilled.forget_all()
    assert made.servers.cancelled == [1, 2]
    for then in made.servers.asked.values():
        then(None)
    assert made.engine.submitted == []
    assert made.failed == []


def test_a_request_that_finds_no_engine_behind_its_prefill_fails_by_name() -> None:
    made = Made()
    assert made.submit(1)
    made.engine.is_up = False
    made.servers.asked[1](b"phase")
    assert made.failed == [(1, "[UNAVAILABLE reason=engine_restarting] no engine")]


def test_a_client_may_not_say_where_kv_cache_is_read_from() -> None:
    refuse_handed_over({"input_ids": np.zeros((1, 2))})
    with pytest.raises(RequestError, match="prefill_servers"):
        refuse_handed_over({"context_phase_params": np.zeros((1, 2))})
