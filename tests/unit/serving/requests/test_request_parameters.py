# SPDX-License-Identifier: Apache-2.0
"""A request's parameters are read, and a release that a model cannot serve is refused."""

import json

import numpy as np
import pytest

from serving.requests.request_parameters import (
    check_release,
    is_context_only,
    parameters_of,
    release_asked_for,
    with_scheduling,
    with_timeout,
)
from trireme.base.errors import RequestError


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", False), ("{}", False), ('{"request_type": "context_only"}', True), ('{"request_type": "both"}', False)],
)
def test_a_request_says_by_its_parameter_that_it_is_for_the_prefills_server(text: str, expected: bool) -> None:
    assert is_context_only(parameters_of(text)) is expected


@pytest.mark.parametrize("text", ["", "{}", '{"release": 2}', '{"release": "2"}', '{"release": "02", "x": 1}'])
def test_a_model_takes_a_request_for_its_own_release_or_for_none(text: str) -> None:
    check_release(parameters_of(text), "2")


@pytest.mark.parametrize("text", ['{"release": 1}', '{"release": "22"}', '{"release": 0}'])
def test_a_model_refuses_another_release_and_says_who_takes_it(text: str) -> None:
    with pytest.raises(RequestError, match=r"\[INVALID_ARG field=release value=\d+\] .*; ask tensorrt_llm_bls"):
        check_release(parameters_of(text), "2")


def test_a_release_is_a_number_however_long() -> None:
    with pytest.raises(RequestError, match="release must be the number of a release, got 'x'"):
        check_release({"release": "x"}, "2")
    assert release_asked_for({"release": "9" * 10_000}) == "9" * 10_000
    assert release_asked_for({"release": "000"}) == "0"


def test_when_a_request_is_to_run_may_be_said_by_parameters_for_each_of_its_prompts() -> None:
    tensors = {"text_input": np.array([[b"a"], [b"b"]], np.object_)}
    parameters = parameters_of('{"priority_class": "batch", "tenant": "gold", "deadline_ms": "500", "x": 1}')
    found = with_scheduling(tensors, parameters)
    assert {name: array.tolist() for name, array in found.items()} == {
        "text_input": [[b"a"], [b"b"]], "priority": [[3], [3]], "tenant": [[b"gold"], [b"gold"]],
        "deadline_ms": [[500], [500]],
    }  # fmt: skip
    assert with_scheduling(tensors, {"x": 1}) is tensors


@pytest.mark.parametrize(
    ("own", "timeout_us", "expected"),
    [(None, 250_000, 250), (None, 1, 1), (500, 250_000, 250), (100, 250_000, 100), (None, 2**63, 2**31 - 1)],
)
def test_tritons_timeout_is_a_deadline_and_the_sooner_one_counts(
    own: int | None, timeout_us: int, expected: int
) -> None:
    tensors = {"input_ids": np.zeros((2, 4), np.int32)}
    if own is not None:
        tensors["deadline_ms"] = np.full((2, 1), own, np.int32)
    found = with_timeout(tensors, timeout_us)["deadline_ms"]
    assert found.tolist() == [[expected]] * 2
    assert found.dtype == np.int32
    assert with_timeout(tensors, 0) is tensors


def test_a_tensor_goes_before_a_parameter() -> None:
    tensors = {"priority": np.array([[1]], np.int32)}
    assert with_scheduling(tensors, {"priority_class": "batch"})["priority"].tolist() == [[1]]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"priority_class": "bulk"}, "priority_class must be one of premium, standard, batch; got 'bulk'"),
        ({"priority_class": 1}, "priority_class must be one of premium, standard, batch; got 1"),
        ({"priority_class": ["batch"]}, "priority_class must be one of"),
        ({"deadline_ms": -1}, "deadline_ms must be a whole number of milliseconds below a billion, got -1"),
        ({"deadline_ms": True}, "deadline_ms must be a whole number of milliseconds below a billion, got True"),
        ({"deadline_ms": "9" * 10}, "deadline_ms must be a whole number of milliseconds below a billion"),
        ({"tenant": "x" * 129}, "tenant has 129 characters, and may have 128"),
    ],
)
def test_a_parameter_that_is_wrong_is_refused_by_name(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        with_scheduling({}, parameters)


def test_a_parameter_that_is_all_but_one_of_ours_is_refused_and_a_clients_own_are_taken() -> None:
    with pytest.raises(RequestError, match="the parameter priorty_class is not known; priority_class is"):
        parameters_of('{"priorty_class": "batch"}')
    own = '{"tenant_id": 7, "deadline": 1, "trace": "x", "priority": 1}'
    assert parameters_of(own) == {"tenant_id": 7, "deadline": 1, "trace": "x", "priority": 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(json.dumps(dict.fromkeys(map(str, range(257)), 1)), "257 parameters; send at most 256", id="many"),
        pytest.param(json.dumps({"own": "x" * 65_536}), "65547 characters; send at most 65536", id="long"),
    ],
)
def test_more_parameters_than_anybody_needs_are_refused_before_they_are_looked_at(text: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        parameters_of(text)
    assert caught.value.facts["field"] == "parameters"
