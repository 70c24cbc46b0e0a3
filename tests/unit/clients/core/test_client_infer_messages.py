# SPDX-License-Identifier: Apache-2.0
"""Requests as tensors: by the contract's table, as tritonclient encodes them, and refused where they do not fit."""

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import InferInput, service_pb2

from clients.infer_messages import GenerateRequest, decode_chunk, decode_chunks, encode_request
from ensemble_configs.render.tensors import CLIENT_INPUTS, inputs_of
from trireme.base.errors import RequestError, ServerError

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
OLD_NAMES = {
    "random_seed",
    "min_length",
    "return_kv_cache_reuse_stats",
}  # of upstream's older clients; ours sends the new ones


def encode(request: GenerateRequest) -> Any:
    return encode_request(request, model="ensemble", model_version="", request_id="r1")


def as_tritonclient_sends(name: str, values: list[Any], dtype: Any) -> InferInput:
    array = np.array([values], dtype)
    data_type = {np.float32: "FP32", np.int32: "INT32", np.uint64: "UINT64", np.bool_: "BOOL"}.get(dtype, "BYTES")
    tensor = InferInput(name, array.shape, data_type)
    tensor.set_data_from_numpy(array)
    return tensor


@given(
    text=TEXT,
    stop_words=st.lists(TEXT, min_size=1, max_size=3),
    temperature=st.floats(width=32),
    seed=st.integers(0, 2**64 - 1),
    end_id=st.integers(-(2**31), 2**31 - 1),
    is_streaming=st.booleans(),
)
def test_tensors_are_encoded_as_tritonclient_encodes_them(
    text: str, stop_words: list[str], temperature: float, seed: int, end_id: int, *, is_streaming: bool
) -> None:
    message = encode(
        GenerateRequest(
            text_input=text,
            max_tokens=4,
            stop_words=tuple(stop_words),
            temperature=temperature,
            seed=seed,
            end_id=end_id,
            stream=is_streaming,
        )
    )
    expected = [
        as_tritonclient_sends("text_input", [text.encode()], np.object_),
        as_tritonclient_sends("max_tokens", [4], np.int32),
        as_tritonclient_sends("stop_words", [word.encode() for word in stop_words], np.object_),
        as_tritonclient_sends("temperature", [temperature], np.float32),
        as_tritonclient_sends("seed", [seed], np.uint64),
        as_tritonclient_sends("end_id", [end_id], np.int32),
        as_tritonclient_sends("stream", [is_streaming], np.bool_),
    ]
    sent = {tensor.name: (tensor, raw) for tensor, raw in zip(message.inputs, message.raw_input_contents, strict=True)}
    assert sent == {tensor.name(): (tensor._get_tensor(), tensor._get_content()) for tensor in expected}


def test_what_is_not_set_is_not_sent() -> None:
    message = encode(GenerateRequest(text_input="hi", max_tokens=4, stop_words=(), return_finish_reason=False))

    assert {tensor.name for tensor in message.inputs} == {"text_input", "max_tokens", "return_finish_reason"}


def test_a_list_of_words_is_sent_as_the_same_tuple_is() -> None:
    as_list = GenerateRequest(text_input="hi", max_tokens=4, stop_words=["the", "end"])  # type: ignore[arg-type]
    assert encode(as_list) == encode(GenerateRequest(text_input="hi", max_tokens=4, stop_words=("the", "end")))


def test_every_field_is_an_input_of_the_contract() -> None:
    assert set(GenerateRequest.__struct_fields__) <= {name for name, _ in inputs_of("tensorrt_llm_bls")}


def test_every_option_that_the_server_reads_is_a_field() -> None:
    options = {row.ensemble for row in CLIENT_INPUTS if row.field}

    arrays = {"prompt_embedding_table", "prompt_vocab_size", "prompt_table_extra_id", "lora_weights", "lora_config"}

    assert options - OLD_NAMES - arrays <= set(GenerateRequest.__struct_fields__)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 2**31),
        ("max_tokens", True),
        ("max_tokens", 1.5),
        ("seed", -1),
        ("temperature", 1e300),
        ("temperature", "hot"),
        ("stream", 1),
        ("text_input", 7),
        ("text_input", "\udcff"),
        ("stop_words", ("ok", "\udcff")),
    ],
)
def test_a_value_that_its_tensor_cannot_hold_is_refused_by_name(field: str, value: Any) -> None:
    fields = {"text_input": "hi", "max_tokens": 4, field: value}
    with pytest.raises(RequestError, match=f"{field} must") as caught:
        encode(GenerateRequest(**fields))

    assert caught.value.facts["field"] == field


def test_of_beams_every_text_is_there_and_the_best_ones_numbers() -> None:
    message = service_pb2.ModelStreamInferResponse()
    texts = b"".join(len(text).to_bytes(4, "little") + text for text in (b"best", b"", b"third"))
    outputs = {
        "text_output": texts,
        "cum_log_probs": struct.pack("<3f", -1, -2, -3),
        "output_log_probs": struct.pack("<6f", -0.5, -0.5, -1, -1, -1.5, -1.5),
    }
    for name, raw in outputs.items():
        message.infer_response.outputs.add(name=name)
        message.infer_response.raw_output_contents.append(raw)
    chunk = decode_chunk(message, is_final=True, received_ns=0)
    assert chunk is not None
    assert (chunk.text, chunk.beams) == ("best", ("best", "", "third"))
    assert (chunk.cum_log_prob, chunk.log_probs) == (-1, (-0.5, -0.5))


def test_a_response_with_several_sequences_is_a_chunk_for_each() -> None:
    message = service_pb2.ModelStreamInferResponse()
    texts = b"".join(len(text).to_bytes(4, "little") + text for text in (b"first", b"", b"third"))
    outputs = {
        "text_output": (texts, [3]),
        "sequence_index": (struct.pack("<3i", 0, 1, 2), [3, 1]),
        "num_output_tokens": (struct.pack("<3i", 5, 1, 7), [3, 1]),
        "output_log_probs": (struct.pack("<6f", -1, -2, -3, 0, -4, -5), [3, 1, 2]),
    }
    for name, (raw, shape) in outputs.items():
        message.infer_response.outputs.add(name=name, shape=shape)
        message.infer_response.raw_output_contents.append(raw)
    chunks = decode_chunks(message, is_final=True, received_ns=0)
    assert [chunk.text for chunk in chunks] == ["first", "", "third"]
    assert [chunk.sequence_index for chunk in chunks] == [0, 1, 2]
    assert [chunk.num_output_tokens for chunk in chunks] == [5, 1, 7]
    assert [chunk.log_probs for chunk in chunks] == [(-1, -2), (-3, 0), (-4, -5)]
    assert [chunk.is_final for chunk in chunks] == [False, False, True]


@pytest.mark.parametrize(
    ("output", "raw"), [("cum_log_probs", b""), ("cum_log_probs", bytes(8)), ("output_log_probs", bytes(3))]
)
def test_numbers_of_the_wrong_size_are_no_response_of_the_contract(output: str, raw: bytes) -> None:
    message = service_pb2.ModelStreamInferResponse()
    message.infer_response.outputs.add(name=output)
    message.infer_response.raw_output_contents.append(raw)
    with pytest.raises(ServerError, match=rf"{output} has {len(raw)} bytes"):
        decode_chunk(message, is_final=False, received_ns=0)


def test_a_release_is_a_parameter_of_the_one_model_that_looks_at_it() -> None:
    request = GenerateRequest(text_input="hi", max_tokens=1)
    message = encode_request(request, model="tensorrt_llm_bls", model_version="", request_id="", release=2)
    assert message.parameters["release"].int64_param == 2
    assert "release" not in encode(request).parameters
    with pytest.raises(RequestError, match=r"field=release value=2.*needs model 'tensorrt_llm_bls', got 'ensemble'"):
        encode_request(request, model="ensemble", model_version="", request_id="", release=2)


def test_measurements_are_named_where_not_all_are_asked_for() -> None:
    request = GenerateRequest(text_input="hi", max_tokens=3, return_perf_metrics=True)
    every = encode_request(request, model="ensemble", model_version="", request_id="1")
    assert list(every.outputs) == []
    some = encode_request(
        request, model="ensemble", model_version="", request_id="1", perf_outputs=("arrival_time_ns",)
    )
    listed = [output.name for output in some.outputs]
    names = set(listed)
    assert len(listed) == len(names), "newer servers refuse a request that names an output twice"
    assert {"text_output", "finish_reason", "num_output_tokens", "arrival_time_ns"} <= names
    assert not {"kv_cache_reused_blocks", "first_token_time_ns", "acceptance_rate"} & names
