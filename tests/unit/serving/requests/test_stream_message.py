# SPDX-License-Identifier: Apache-2.0
"""Responses written without a library are what a client's library reads."""

import numpy as np
import numpy.typing as npt
import pytest
from tritonclient.grpc import service_pb2

from ensemble_configs.render.tensors import outputs_of
from serving.requests.stream_message import StreamMessages

TENSORS: dict[str, npt.NDArray[np.generic]] = {
    "text_output": np.array(["héllo".encode(), b"", b"x" * 70_000], dtype=np.object_),
    "output_ids": np.arange(-3, 297, dtype=np.int32).reshape(1, 2, 150),
    "cum_log_probs": np.array([[-1.5, float("inf")]], dtype=np.float32),
    "arrival_time_ns": np.array([[2**62]], dtype=np.int64),
    "stream_state": np.frombuffer(b"\0\xff", dtype=np.uint8)[np.newaxis],
    "context_logits": np.zeros((1, 0, 300), dtype=np.float16),
    "generation_logits": np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1),
    "is_so": np.array([[True, False]]),
}


def read(message: bytes) -> service_pb2.ModelInferResponse:
    assert message[0] == 0
    assert int.from_bytes(message[1:5]) == len(message) - 5
    found = service_pb2.ModelStreamInferResponse.FromString(message[5:])
    assert not found.error_message
    return found.infer_response


@pytest.mark.parametrize("request_id", ["", "r1", "é" * 100])
def test_it_is_what_a_client_reads(request_id: str) -> None:
    response = read(StreamMessages("my_ensemble", "12", request_id).message(TENSORS))
    assert (response.model_name, response.model_version, response.id) == ("my_ensemble", "12", request_id)
    assert dict(response.parameters).keys() == {"triton_final_response"}
    assert response.parameters["triton_final_response"].WhichOneof("parameter_choice") == "bool_param"
    assert not response.parameters["triton_final_response"].bool_param
    assert [output.name for output in response.outputs] == list(TENSORS)
    for output, raw, tensor in zip(response.outputs, response.raw_output_contents, TENSORS.values(), strict=True):
        assert list(output.shape) == list(tensor.shape)
        if output.datatype != "BYTES":
            np.testing.assert_array_equal(np.frombuffer(raw, dtype=tensor.dtype).reshape(tensor.shape), tensor)
    assert [output.datatype for output in response.outputs] == [
        "BYTES", "INT32", "FP32", "INT64", "UINT8", "FP16", "FP32", "BOOL",
    ]  # fmt: skip
    first = response.raw_output_contents[0]
    assert first[:4] + first[4:10] == (6).to_bytes(4, "little") + "héllo".encode()
    assert len(first) == 4 * 3 + 6 + 70_000


def test_an_empty_response_is_one() -> None:
    assert not read(StreamMessages("m", "1", "").message({})).outputs


def test_every_output_of_the_contract_has_a_data_type_that_can_be_written() -> None:
    numpy_types = {"TYPE_STRING": np.object_, "TYPE_FP32": np.float32, "TYPE_BOOL": np.bool_}
    for model in ("ensemble", "tensorrt_llm", "tensorrt_llm_bls"):
        for name, row in outputs_of(model):
            dtype = numpy_types.get(row.data_type) or np.dtype(row.data_type.removeprefix("TYPE_").lower())
            tensor: npt.NDArray[np.generic] = np.zeros((0,), dtype=dtype)
            [output] = read(StreamMessages(model, "1", "").message({name: tensor})).outputs
            assert row.data_type in {f"TYPE_{output.datatype}", "TYPE_STRING"}
