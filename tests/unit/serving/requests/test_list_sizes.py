# SPDX-License-Identifier: Apache-2.0
"""Lists that are longer than anything can use are refused by name before Python looks at their values."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from test_engine_request import INFO

from serving.requests.engine_request import RequestDecoder
from trireme.base.errors import RequestError

ASK: dict[str, npt.NDArray[np.generic]] = {
    "input_ids": np.array([[1, 2]], np.int32),
    "input_lengths": np.array([[2]], np.int32),
    "request_output_len": np.array([[1]], np.int32),
}
OF_TOKENS = (
    "decoder_input_ids",
    "draft_input_ids",
    "prompt_table_extra_ids",
    "retention_token_range_starts",
    "retention_token_range_ends",
    "retention_token_range_priorities",
    "retention_token_range_durations_ms",
)


class Untouched(np.ndarray[Any, Any]):
    """Values that no code may look at."""

    def tolist(self) -> object:
        raise AssertionError("its values were looked at")


def refusal(**tensors: npt.NDArray[np.generic]) -> RequestError:
    untouched = {name: array.view(Untouched) for name, array in tensors.items()}
    with pytest.raises(RequestError) as caught:
        RequestDecoder(INFO).decode(ASK | untouched)
    return caught.value


@pytest.mark.parametrize("name", OF_TOKENS)
def test_a_list_of_tokens_is_no_longer_than_a_sequence(name: str) -> None:
    size = INFO.max_seq_len + 1
    error = refusal(**{name: np.zeros((1, size), np.int32)})
    assert error.facts == {"field": name, "value": size, "max": INFO.max_seq_len}
    assert f"{name} has {size} values; send at most {INFO.max_seq_len}" in error.message


def test_a_prompt_of_too_many_ids_is_refused_before_they_are_read() -> None:
    error = refusal(input_ids=np.zeros((1, 2_500_000), np.int32))
    assert error.facts == {"field": "input_ids", "value": 2_500_000, "max": INFO.max_seq_len - 1}


@pytest.mark.parametrize("name", ["bad_words_list", "stop_words_list"])
def test_words_have_so_many_ids_together(name: str) -> None:
    error = refusal(**{name: np.zeros((1, 2, 65_537), np.int32)})
    assert error.facts == {"field": name, "value": 65_537, "max": 65_536}


def test_bad_words_in_ids_are_no_more_than_in_text() -> None:
    words = np.zeros((1, 2, 4097), np.int32)
    words[0, 1] = np.arange(1, 4098)
    with pytest.raises(RequestError, match="bad_words has 4097 words; send at most 4096"):
        RequestDecoder(INFO).decode(ASK | {"bad_words_list": words})


def test_ends_that_are_wrong_are_not_all_told() -> None:
    words = np.full((1, 2, 60_000), -1, np.int32)
    words[0, 1, 0] = 60_001
    with pytest.raises(RequestError, match="must hold the ascending ends") as caught:
        RequestDecoder(INFO).decode(ASK | {"bad_words_list": words})
    assert len(caught.value.message) < 400


def test_an_adapters_configuration_has_a_row_for_each_module_of_each_layer() -> None:
    error = refusal(lora_config=np.ones((1, 65_537, 3), np.int32))
    assert error.facts == {"field": "lora_config", "value": 65_537, "max": 65_536}
