# SPDX-License-Identifier: Apache-2.0
"""The limits of a request over gRPC against protobuf's own parser, and of JSON's values against numpy's."""

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from serving.frontend.common.infer_limits import MAX_ELEMENTS, MAX_FIELDS, MAX_TEXTS, check_message, check_shape
from serving.frontend.http.tensor_values import flat, from_raw, spread, to_raw
from trireme.base.errors import RequestError

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
            assert check_message(request.SerializeToString()).name == request.model_name


def broken_requests(rng: random.Random, whole: bytes, number: int) -> Iterator[bytes]:
    for _ in range(number):
        broken = bytearray(whole[: rng.randrange(len(whole) + 1)] + rng.randbytes(rng.randrange(20)))
        for _ in range(rng.randrange(5)):
            if broken:
                broken[rng.randrange(len(broken))] = rng.randrange(256)
        yield bytes(broken)


@pytest.mark.parametrize("seed", range(20))
def test_bytes_that_are_no_request_are_refused_by_name(seed: int) -> None:
    rng = random.Random(seed)
    for broken in broken_requests(rng, any_request(rng).SerializeToString(), 500):
        try:
            model = check_message(broken).name
        except RequestError as exc:
            assert exc.facts["field"] is not None  # noqa: PT017 - it may be refused, by name
        else:
            assert_harmless(broken, model)


def assert_harmless(message: bytes, model: str) -> None:
    """Compare the fields that protobuf's parser reads in an accepted message with the limits."""
    try:
        request = service_pb2.ModelInferRequest.FromString(message)
    except DecodeError:
        return
    assert request.model_name == model
    assert not any(map(is_too_large, request.inputs))
    assert not any("classification" in output.parameters for output in request.outputs)


GROUP = b"\xfb\x01\xfc\x01"  # field 31: protobuf skips the group, whatever is in it


@pytest.mark.parametrize(
    "written",
    [
        lambda request: GROUP + request,
        lambda request: request + GROUP,
        lambda request: b"\xfb\x01" + request + b"\xfc\x01" + request,
        # The key of field 5 as parsers in C++ read it, which drop the bits beyond 32.
        lambda request: request.replace(b"\x2a", b"\xaa\x80\x80\x80\x10", 1),
    ],
)
def test_what_only_another_parser_reads_is_refused(written: Callable[[bytes], bytes]) -> None:
    request = service_pb2.ModelInferRequest()
    request.inputs.add(name="TOKENS_BATCH", datatype="INT32", shape=[1, 0, 2**62])
    read = service_pb2.ModelInferRequest.FromString(GROUP + request.SerializeToString())
    assert read.inputs == request.inputs
    with pytest.raises(RequestError):
        check_message(written(request.SerializeToString()))


def test_classes_of_an_output_are_refused() -> None:
    request = service_pb2.ModelInferRequest(model_name="ensemble")
    output = request.outputs.add(name="text_output")
    output.parameters["binary_data"].bool_param = True
    assert check_message(request.SerializeToString()).name == "ensemble"
    output.parameters["classification"].int64_param = 3
    with pytest.raises(RequestError, match="the output text_output is no classification"):
        check_message(request.SerializeToString())


@pytest.mark.parametrize("where", ["request", "input", "output", "contents"])
def test_fields_that_nobody_knows_are_counted_wherever_they_are(where: str) -> None:
    unknown = b"\x78\x00" * (MAX_FIELDS + 1)
    request = service_pb2.ModelInferRequest(model_name="ensemble")
    tensor, output = request.inputs.add(name="t", datatype="INT32", shape=[1]), request.outputs.add(name="o")
    holders = {"request": request, "input": tensor, "output": output}
    found = tensor.contents if where == "contents" else holders[where].parameters["p"]
    found.MergeFromString(unknown)
    tensor.contents.SetInParent()
    with pytest.raises(RequestError, match=f"more than {MAX_FIELDS} fields"):
        check_message(request.SerializeToString())


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
