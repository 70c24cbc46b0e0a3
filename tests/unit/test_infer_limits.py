# SPDX-License-Identifier: Apache-2.0
"""What a request over gRPC may hold, against the parser that protobuf brings; and JSON's values against numpy's."""

import math
import random
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from ensemble_configs.errors import RequestError
from serving.frontend.infer_limits import MAX_ELEMENTS, MAX_TEXTS, check_message, check_shape
from serving.frontend.tensor_values import flat, from_raw, spread, to_raw

# What tritonclient generates has no types: its messages are `Any`.
DIMS = [-1, 0, 1, 2, 7, 255, 2**15, 2**24, 2**31, 2**47, 2**62, 2**63 - 1, -(2**63)]
NUMPY: dict[str, Any] = {
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "UINT8": np.uint8, "UINT16": np.uint16,
    "UINT32": np.uint32, "UINT64": np.uint64, "FP16": np.float16, "FP32": np.float32, "FP64": np.float64,
}  # fmt: skip


def any_request(rng: random.Random) -> Any:
    request = service_pb2.ModelInferRequest(
        model_name=rng.choice(["", "ensemble", "m" * 300]), id="x" * rng.randrange(9)
    )
    for _ in range(rng.randrange(4)):
        shape = [rng.choice(DIMS) for _ in range(rng.randrange(5))]
        tensor = request.inputs.add(name=f"t{rng.randrange(9)}", datatype=rng.choice(["INT32", "BYTES"]), shape=shape)
        tensor.contents.int_contents.extend(range(rng.randrange(5)))
        tensor.parameters["a"].int64_param = rng.randrange(-5, 5)
        request.raw_input_contents.append(rng.randbytes(rng.randrange(300)))
    request.parameters["p"].double_param = rng.random()
    return request


def is_too_large(tensor: Any) -> bool:
    most = MAX_TEXTS if tensor.datatype == "BYTES" else MAX_ELEMENTS
    return bool(math.prod(max(abs(dim), 1) for dim in tensor.shape) > most)


@pytest.mark.parametrize("seed", range(20))
def test_a_request_is_read_as_protobuf_reads_it(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        request = any_request(rng)
        if any(map(is_too_large, request.inputs)):
            with pytest.raises(RequestError, match="the dims that are not 0 may be at most"):
                check_message(request.SerializeToString())
        else:
            assert check_message(request.SerializeToString()) == request.model_name


@pytest.mark.parametrize("seed", range(20))
def test_bytes_that_are_no_request_are_left_to_triton(seed: int) -> None:
    rng = random.Random(seed)
    whole = any_request(rng).SerializeToString()
    for _ in range(500):
        broken = bytearray(whole[: rng.randrange(len(whole) + 1)] + rng.randbytes(rng.randrange(20)))
        for _ in range(rng.randrange(5)):
            if broken:
                broken[rng.randrange(len(broken))] = rng.randrange(256)
        try:
            check_message(bytes(broken))
        except RequestError as exc:
            assert exc.facts["field"] is not None  # noqa: PT017 - it may be refused, by name


def test_shapes_of_any_tensor_of_the_contract_pass() -> None:
    check_shape("prompt_embedding_table", "FP16", [1, 8192, 16_384])
    check_shape("lora_weights", "FP16", [1, 500, 2**20])
    check_shape("stop_words", "BYTES", [128, 512])


@pytest.mark.parametrize("data_type", NUMPY)
def test_values_are_numpys_bytes_each_way(data_type: str) -> None:
    kind = NUMPY[data_type]
    if data_type.startswith("FP"):
        values: list[float | int] = [0, 1, -2.5, 65_504, 1e-3]
    else:
        limits = np.iinfo(kind)
        values = [int(limits.min), int(limits.max), 0, 1]
    array = np.array(values, kind)
    assert to_raw("t", data_type, values) == array.tobytes()
    assert from_raw("t", data_type, array.tobytes(), len(values)) == array.tolist()


@pytest.mark.parametrize("data_type", [name for name in NUMPY if not name.startswith("FP")])
def test_a_number_one_beyond_is_refused(data_type: str) -> None:
    limits = np.iinfo(NUMPY[data_type])
    for value in (int(limits.min) - 1, int(limits.max) + 1, 1.0, True, "1", None):
        with pytest.raises(RequestError) as refusal:
            to_raw("t", data_type, [value])
        assert refusal.value.facts["field"] == "t"


def test_texts_and_truths() -> None:
    texts = ["", "ü€\U0001f98a", "a" * 300]
    raw = to_raw("t", "BYTES", texts)
    assert from_raw("t", "BYTES", raw, 3) == texts
    assert to_raw("t", "BOOL", [True, False]) == b"\1\0"
    assert from_raw("t", "BF16", np.array([0x3FC0], np.uint16).tobytes(), 1) == [1.5]


def test_a_list_is_spread_over_a_shape_as_tritons_generate_spreads_it() -> None:
    assert spread("t", 1, (-1, 1)) == [1, 1]
    assert spread("t", 3, (-1, 1)) == [3, 1]
    assert spread("t", 3, (-1, -1)) == [1, 3]
    assert spread("t", 6, (-1, 2, -1)) == [1, 2, 3]
    for num_values, shape in ((3, (-1, 2)), (2, (1,)), (0, (1,))):
        with pytest.raises(RequestError, match="which do not fit into its shape"):
            spread("t", num_values, shape)


def test_lists_are_flattened_without_a_stack() -> None:
    deep: list[object] = [1]
    for _ in range(100_000):
        deep = [deep, 2]
    assert flat(deep)[:2] == [1, 2]
    assert len(flat(deep)) == 100_001
