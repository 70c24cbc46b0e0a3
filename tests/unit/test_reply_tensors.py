# SPDX-License-Identifier: Apache-2.0
"""A reply's tensors have upstream's names, types and shapes; what was not asked for is absent."""

import numpy as np
import pytest

from ensemble_configs.tensors import outputs_of
from serving.engines.base import FinishReason
from serving.reply_tensors import reply_tensors
from serving.running_request import Reply
from serving.stream_state import StreamState, unpack_state

EVERYTHING = Reply(
    token_ids=[5, 6],
    is_final=True,
    num_input_tokens=3,
    num_output_tokens=2,
    finish_reason=FinishReason.STOP_STRING,
    stream_state=StreamState(9, True, ("stop",), 1),
)


def test_a_direct_caller_gets_ids_and_their_number() -> None:
    tensors = reply_tensors(Reply(token_ids=[5, 6, 7], is_final=False))
    assert set(tensors) == {"output_ids", "sequence_length"}
    assert tensors["output_ids"].tolist() == [[[5, 6, 7]]]
    assert tensors["sequence_length"].tolist() == [[3]]


def test_a_stream_of_the_ensemble_has_its_state_instead_of_a_number() -> None:
    tensors = reply_tensors(EVERYTHING)
    assert "sequence_length" not in tensors
    assert unpack_state(tensors["stream_state"].tobytes()) == EVERYTHING.stream_state


def test_what_was_asked_for_is_there() -> None:
    tensors = reply_tensors(EVERYTHING)
    assert tensors["num_input_tokens"].tolist() == [[3]]
    assert tensors["num_output_tokens"].tolist() == [[2]]
    assert tensors["finish_reason"].tolist() == [[b"stop_string"]]


def test_nothing_is_not_absent() -> None:
    tensors = reply_tensors(Reply(token_ids=[], is_final=True, num_input_tokens=0, num_output_tokens=0))
    assert tensors["output_ids"].shape == (1, 1, 0)
    assert tensors["sequence_length"].tolist() == tensors["num_input_tokens"].tolist() == [[0]]
    assert tensors["num_output_tokens"].tolist() == [[0]]


@pytest.mark.parametrize("reply", [EVERYTHING, Reply(token_ids=[], is_final=True)])
def test_every_tensor_is_of_the_type_and_shape_that_the_contract_declares(reply: Reply) -> None:
    types = {"TYPE_INT32": np.int32, "TYPE_UINT8": np.uint8, "TYPE_STRING": np.object_}
    declared = dict(outputs_of("tensorrt_llm"))
    for name, array in reply_tensors(reply).items():
        assert array.dtype == types[declared[name].data_type]
        assert array.shape[0] == 1, "the batch"
        assert array.ndim == 1 + len(declared[name].dims)
        assert all(size in (-1, actual) for size, actual in zip(declared[name].dims, array.shape[1:], strict=True))
