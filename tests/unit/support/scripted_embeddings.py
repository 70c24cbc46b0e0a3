# SPDX-License-Identifier: Apache-2.0
"""An embedding model that is scripted: the vector of a text is its length and its first letter, and 1."""

import struct
from typing import Any

from tritonclient.grpc import service_pb2

from ensemble_configs.spec.engine.embedding_spec import EmbeddingModelSpec
from gateway.served_models import ServedModel

WIDTH = 3


def embedding_model(name: str = "embed", **fields: Any) -> ServedModel:
    spec = EmbeddingModelSpec.model_validate({"name": name, "dir": "/models/embed", "pooling": "mean", **fields})
    return ServedModel(name, name, spec.max_tokens, embedding=spec)


def rows_of(message: Any) -> list[bytes] | list[list[int]]:
    """Return the texts of a request, or its token ids, with the padding."""
    given = dict(zip((each.name for each in message.inputs), message.raw_input_contents, strict=True))
    if "text_input" in given:
        rows, rest = [], given["text_input"]
        while rest:
            end = 4 + int.from_bytes(rest[:4], "little")
            rows.append(rest[4:end])
            rest = rest[end:]
        return rows
    [shape] = [list(each.shape) for each in message.inputs if each.name == "input_ids"]
    values = struct.unpack(f"<{shape[0] * shape[1]}i", given["input_ids"])
    return [list(values[begin : begin + shape[1]]) for begin in range(0, len(values), shape[1])]


def vector_of(row: bytes | list[int]) -> list[float]:
    return [float(len(row)), float(row[0]), 1.0]


def answer(message: Any) -> Any:
    """Return the answer to a request: a token for each byte of a text."""
    rows = rows_of(message)
    found = service_pb2.ModelInferResponse()
    vectors = [value for row in rows for value in vector_of(row)]
    for name, data_type, shape, raw in (
        ("embedding", "FP32", [len(rows), WIDTH], struct.pack(f"<{len(vectors)}f", *vectors)),
        ("num_input_tokens", "INT32", [len(rows), 1], struct.pack(f"<{len(rows)}i", *map(len, rows))),
    ):
        found.outputs.add(name=name, datatype=data_type, shape=shape)
        found.raw_output_contents.append(raw)
    return found
