# SPDX-License-Identifier: Apache-2.0
"""OpenAI's bodies of `/v1/embeddings`: carried, or refused by the parameter's name."""

import base64
import struct
from typing import Any

import pytest

from clients.embedding_messages import EmbeddingRequest
from clients.openai_api.answer_deltas import Usage
from clients.openai_api.api_error import ApiError
from clients.openai_api.embeddings_body import MAX_INPUTS, embeddings_answer, embeddings_asked_by


@pytest.mark.parametrize(
    ("given", "request_"),
    [
        ("a", EmbeddingRequest(texts=("a",))),
        (["a", "b"], EmbeddingRequest(texts=("a", "b"))),
        ([1, 2], EmbeddingRequest(ids=((1, 2),))),
        ([[1, 2], [3]], EmbeddingRequest(ids=((1, 2), (3,)))),
    ],
)
def test_every_form_of_an_input_is_carried(given: Any, request_: EmbeddingRequest) -> None:
    assert embeddings_asked_by({"input": given}).request == request_


def test_the_other_parameters_are_carried_and_null_is_not_given() -> None:
    asked = embeddings_asked_by(
        {"input": "a", "model": "m", "encoding_format": "base64", "dimensions": 3, "user": "alice"}
    )
    assert (asked.model, asked.is_base64, asked.request.dimensions) == ("m", True, 3)
    asked = embeddings_asked_by({"input": "a", "model": None, "encoding_format": None, "dimensions": None})
    assert (asked.model, asked.is_base64, asked.request.dimensions) == (None, False, None)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [[]]}, "input[0]"),
        ({"input": [[1, -2]]}, "input[0][1]"),
        ({"input": [1, 2**31]}, "input[1]"),
        ({"input": ["a", 1]}, "input"),
        ({"input": [1, [2]]}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": [1.5]}, "input[0]"),
        ({"input": ["a"] * (MAX_INPUTS + 1)}, "input"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": "8"}, "dimensions"),
        ({"input": "a", "model": 3}, "model"),
        ({"input": "a", "truncate": True}, "truncate"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(body: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        embeddings_asked_by(body)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert refused.value.message.startswith(param.partition("[")[0])


def test_vectors_are_told_as_numbers_or_as_their_bytes() -> None:
    vectors = [struct.pack("<2f", 0.5, -1.25), struct.pack("<2f", 0.0, 3.0)]
    body: Any = embeddings_answer(vectors, Usage(7), model="m", is_base64=False)
    assert body == {
        "object": "list",
        "model": "m",
        "data": [
            {"object": "embedding", "index": 0, "embedding": (0.5, -1.25)},
            {"object": "embedding", "index": 1, "embedding": (0.0, 3.0)},
        ],
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }
    body = embeddings_answer(vectors, Usage(7), model="m", is_base64=True)
    assert [base64.b64decode(each["embedding"]) for each in body["data"]] == vectors
