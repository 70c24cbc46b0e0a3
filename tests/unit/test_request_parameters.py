# SPDX-License-Identifier: Apache-2.0
"""A request's parameters are read, and a release that a model cannot serve is refused."""

import pytest

from ensemble_configs.errors import RequestError
from serving.request_parameters import check_release, is_context_only, parameters_of, release_asked_for


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
