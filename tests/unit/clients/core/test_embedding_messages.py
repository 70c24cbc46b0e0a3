# SPDX-License-Identifier: Apache-2.0
"""Requests for embeddings and their answers on the wire."""

import struct

import pytest
from tritonclient.grpc import service_pb2

from clients.embedding_messages import EmbeddingRequest, decode_embeddings, encode_embedding_request
from trireme.base.errors import RequestError, ServerError


def encode(request: EmbeddingRequest) -> dict[str, tuple[str, list[int], bytes]]:
    message = encode_embedding_request(request, model="embed", request_id="r")
    assert (message.model_name, message.id) == ("embed", "r")
    return {
        each.name: (each.datatype, list(each.shape), raw)
        for each, raw in zip(message.inputs, message.raw_input_contents, strict=True)
    }


def test_texts_are_a_row_each() -> None:
    assert encode(EmbeddingRequest(texts=("a", "ü"))) == {
        "text_input": ("BYTES", [2, 1], b"\x01\0\0\0a" + b"\x02\0\0\0\xc3\xbc")
    }


def test_token_ids_of_different_length_are_padded() -> None:
    assert encode(EmbeddingRequest(ids=((5, 6, 7), (8,)), dimensions=4)) == {
        "input_ids": ("INT32", [2, 3], struct.pack("<6i", 5, 6, 7, 8, -1, -1)),
        "dimensions": ("INT32", [2, 1], struct.pack("<2i", 4, 4)),
    }


def test_a_part_has_the_rows_from_the_one_to_the_other() -> None:
    request = EmbeddingRequest(texts=("a", "b", "c"), dimensions=2)
    assert request.part(1, 3) == EmbeddingRequest(texts=("b", "c"), dimensions=2)
    assert EmbeddingRequest(ids=((1,), (2,))).part(0, 1) == EmbeddingRequest(ids=((1,),))


@pytest.mark.parametrize(
    ("request_", "field"),
    [(EmbeddingRequest(texts=("\ud800",)), "text_input"), (EmbeddingRequest(ids=((2**31,),)), "input_ids")],
)
def test_what_no_tensor_holds_is_refused_by_name(request_: EmbeddingRequest, field: str) -> None:
    with pytest.raises(RequestError) as refused:
        encode(request_)
    assert refused.value.facts["field"] == field


def response(shape: list[int], vectors: bytes, counts: bytes) -> service_pb2.ModelInferResponse:
    found = service_pb2.ModelInferResponse()
    for name, data_type, dims, raw in (
        ("embedding", "FP32", shape, vectors),
        ("num_input_tokens", "INT32", [shape[0], 1], counts),
    ):
        found.outputs.add(name=name, datatype=data_type, shape=dims)
        found.raw_output_contents.append(raw)
    return found


def test_an_answer_has_the_bytes_of_each_vector() -> None:
    found = decode_embeddings(response([2, 1], struct.pack("<2f", 1.0, 2.0), struct.pack("<2i", 3, 4)))
    assert found.vectors == (struct.pack("<f", 1.0), struct.pack("<f", 2.0))
    assert found.num_tokens == (3, 4)


@pytest.mark.parametrize(
    "broken",
    [
        service_pb2.ModelInferResponse(),
        response([2, 1], b"\0" * 4, struct.pack("<2i", 3, 4)),
        response([1, 1], b"\0" * 4, b""),
        response([4], b"\0" * 16, struct.pack("<4i", 1, 1, 1, 1)),
    ],
)
def test_what_is_not_of_the_contract_is_the_server_s_fault(broken: service_pb2.ModelInferResponse) -> None:
    with pytest.raises(ServerError, match="not of the serving contract"):
        decode_embeddings(broken)
