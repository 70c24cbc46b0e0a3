# SPDX-License-Identifier: Apache-2.0
"""A reply's tensors have upstream's names, types and shapes; what was not asked for is absent."""

import numpy as np
import pytest

from ensemble_configs.render.tensors import outputs_of
from serving.engines.seam.base import FinishReason, PerfMetrics
from serving.pipeline.reply_tensors import reply_tensors
from serving.pipeline.running_request import Reply
from serving.requests.stream_state import StreamState, unpack_state

EVERYTHING = Reply(
    token_ids=[5, 6],
    is_final=True,
    num_input_tokens=3,
    num_output_tokens=2,
    finish_reason=FinishReason.STOP_STRING,
    stream_state=StreamState(9, True, 1, ("stop",)),
    log_probs=[-0.5, -1.5],
    cum_log_prob=-2.0,
    sequence_index=3,
    perf=PerfMetrics(1, 2, 3, 2**62, 4, 1, 5, total_accepted_draft_tokens=6, total_draft_tokens=8),
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
    assert tensors["output_log_probs"].tolist() == [[[-0.5, -1.5]]]
    assert tensors["cum_log_probs"].tolist() == [[-2.0]]
    assert tensors["sequence_index"].tolist() == [[3]]
    assert tensors["last_token_time_ns"].tolist() == [[2**62]]
    assert tensors["kv_cache_reused_blocks"].tolist() == [[1]]
    assert tensors["acceptance_rate"].tolist() == [[0.75]]


def test_what_an_engine_does_not_know_of_its_performance_is_absent() -> None:
    perf = PerfMetrics(1, 2, 3, 4, total_draft_tokens=None)
    tensors = reply_tensors(Reply(token_ids=[], is_final=True, perf=perf))
    assert not {name for name in tensors if name.startswith(("kv_cache", "acceptance", "total_draft"))}
    assert tensors["arrival_time_ns"].tolist() == [[1]]
    assert tensors["total_accepted_draft_tokens"].tolist() == [[0]]


def test_no_draft_is_an_acceptance_rate_of_zero() -> None:
    tensors = reply_tensors(Reply(token_ids=[], is_final=True, perf=PerfMetrics(1, 2, 3, 4)))
    assert tensors["acceptance_rate"].tolist() == [[0.0]]


def test_nothing_is_not_absent() -> None:
    tensors = reply_tensors(Reply(token_ids=[], is_final=True, num_input_tokens=0, num_output_tokens=0))
    assert tensors["output_ids"].shape == (1, 1, 0)
    assert tensors["sequence_length"].tolist() == tensors["num_input_tokens"].tolist() == [[0]]
    assert tensors["num_output_tokens"].tolist() == [[0]]


@pytest.mark.parametrize("reply", [EVERYTHING, Reply(token_ids=[], is_final=True)])
def test_every_tensor_is_of_the_type_and_shape_that_the_contract_declares(reply: Reply) -> None:
    types = {
        "TYPE_INT32": np.int32,
        "TYPE_INT64": np.int64,
        "TYPE_UINT8": np.uint8,
        "TYPE_FP32": np.float32,
        "TYPE_STRING": np.object_,
    }
    declared = dict(outputs_of("tensorrt_llm"))
    for name, array in reply_tensors(reply).items():
        assert array.dtype == types[declared[name].data_type]
        assert array.shape[0] == 1, "the batch"
        assert array.ndim == 1 + len(declared[name].dims)
        assert all(size in (-1, actual) for size, actual in zip(declared[name].dims, array.shape[1:], strict=True))
