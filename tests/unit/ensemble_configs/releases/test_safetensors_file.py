# SPDX-License-Identifier: Apache-2.0
"""Headers of safetensors files, honest and not."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_checkpoints import safetensors_bytes

from ensemble_configs.releases.safetensors_file import DTYPE_BITS, as_floats, open_tensor, read_header
from trireme.base.errors import SpecError
from trireme.base.project_files import CODE_ROOT

DEMO = CODE_ROOT / "examples/demo_model/target/model.safetensors"
TWO: dict[str, npt.NDArray[Any]] = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.arange(4, dtype=np.float16),
}


def file_of(path: Path, header: object, data: bytes = b"", *, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def test_tensors_are_read_where_the_header_says(tmp_path: Path) -> None:
    path = tmp_path / "two.safetensors"
    path.write_bytes(safetensors_bytes(TWO))
    stored = read_header(path)
    assert list(stored) == ["a", "b"]
    for name, values in TWO.items():
        assert stored[name].shape == values.shape
        assert np.array_equal(as_floats(stored[name], open_tensor(stored[name])), values)


def test_bf16_is_the_upper_half_of_a_float(tmp_path: Path) -> None:
    values = np.array([1.0, -2.5, 3e38, 1e-40, 0.0], np.float32)
    upper = (values.view(np.uint32) >> 16).astype(np.uint16)
    path = tmp_path / "one.safetensors"
    path.write_bytes(safetensors_bytes({"x": upper}))
    stored = read_header(path)["x"]
    assert stored.dtype == "BF16"
    found = as_floats(stored, open_tensor(stored))
    assert np.array_equal(found.view(np.uint32), values.view(np.uint32) & 0xFFFF0000)


def test_scalars_empty_tensors_and_metadata_are_read(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "empty": {"dtype": "F32", "shape": [0, 5], "data_offsets": [0, 0]},
        "scalar": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
        "packed": {"dtype": "F4", "shape": [3, 2], "data_offsets": [4, 7]},
    }
    stored = read_header(file_of(tmp_path / "x", header, np.float32(7).tobytes() + b"123"))
    assert open_tensor(stored["empty"]).shape == (0, 5)
    assert open_tensor(stored["scalar"]) == np.float32(7)
    with pytest.raises(SpecError, match="packed is F4; only F16, BF16, F32 and F64 are read here"):
        open_tensor(stored["packed"])


def test_the_demo_models_file_is_whole() -> None:
    stored = read_header(DEMO)
    assert sum(tensor.num_bytes for tensor in stored.values()) == 2 * 4_983_552


def one(**change: Any) -> dict[str, Any]:
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | change}


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        (b"", b"", "its header does not begin with {"),
        (b"[]", b"", "its header does not begin with {"),
        (b'{"a": ', b"", "its header is no JSON"),
        (b'{"a": "\xff"}', b"", "its header is no JSON"),
        (b'{"a":' * 100_000, b"", "its header is no JSON"),  # nested without end
        (b'{"a": {}, "a": {}}', b"", "'a' is there twice"),
        (one(dtype="F99"), b"8 bytes.", "'a' has the unknown type 'F99'"),
        (one(dtype=[]), b"8 bytes.", "'a' has the unknown type"),
        ({"a": 3}, b"", "'a' has the unknown type 'None'"),
        (one(shape=[-2]), b"8 bytes.", "'a' has no shape of at most 16 whole numbers"),
        (one(shape=[2.0]), b"8 bytes.", "'a' has no shape"),
        (one(shape=[True, 2]), b"8 bytes.", "'a' has no shape"),
        (one(shape=[1] * 17), b"8 bytes.", "'a' has no shape"),
        (one(shape=[3]), b"8 bytes.", "'a' has 8 bytes, which is not what F32 .3. takes"),
        (one(shape=[2**62] * 16), b"8 bytes.", "'a' has 8 bytes, which is not what F32"),
        (one(dtype="F4", shape=[3], data_offsets=[0, 1]), b"1", "'a' has 1 bytes, which is not what F4 .3. takes"),
        (one(data_offsets=[0, 9]), b"8 bytes.", "'a' does not lie in the file"),
        (one(data_offsets=[8, 0]), b"8 bytes.", "'a' does not lie in the file"),
        (one(data_offsets=[-8, 0]), b"8 bytes.", "'a' does not lie in the file"),
        (one(data_offsets=[0]), b"8 bytes.", "'a' does not lie in the file"),
        (one(data_offsets=[4, 12]), b"12 bytes here", "'a' leaves a gap behind 'the header'"),
        (one() | {"b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}, b"12 bytes....", "'b' overlaps 'a'"),
        (one(), b"9 bytes. ", "1 bytes behind the last tensor belong to none"),
        ({}, b"x", "1 bytes behind the last tensor belong to none"),
    ],
)
def test_a_header_that_lies_is_refused_with_what_is_wrong(
    tmp_path: Path, header: object, data: bytes, words: str
) -> None:
    with pytest.raises(SpecError, match=words):
        read_header(file_of(tmp_path / "x.safetensors", header, data))


@pytest.mark.parametrize("length", [100, 2**63, 100_000_001])
def test_a_header_longer_than_the_file_or_the_limit_is_not_read(tmp_path: Path, length: int) -> None:
    path = file_of(tmp_path / "x.safetensors", b"{}", length=length)
    with path.open("r+b") as file:
        file.truncate(200_000_000 if length == 100_000_001 else 60)  # a hole, no disk
    with pytest.raises(
        SpecError, match=f"its header should have {length:,} bytes, the file has .*, the limit is 100,0"
    ):
        read_header(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"cannot read .*: No such file"):
        read_header(tmp_path / "none")
    with pytest.raises(SpecError, match="it is no file"):
        read_header(tmp_path)
    (tmp_path / "short").write_bytes(b"123")
    with pytest.raises(SpecError, match="the file has 3"):
        read_header(tmp_path / "short")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
almost_tensors = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(sorted(DTYPE_BITS)) | json_values,
        "shape": st.lists(st.integers(-1, 5) | st.integers(), max_size=4) | json_values,
        "data_offsets": st.lists(st.integers(-1, 40) | st.integers(), min_size=2, max_size=2) | json_values,
    },
)
headers = (
    st.binary(max_size=200)
    | st.dictionaries(st.text(max_size=8), almost_tensors | json_values, max_size=3).map(
        lambda it: json.dumps(it).encode()
    )
    | json_values.map(lambda it: json.dumps(it).encode())
)
few = settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])


@few
@given(header=headers, data=st.binary(max_size=40), length=st.none() | st.integers(0, 2**64 - 1))
def test_no_header_raises_anything_but_a_named_error(
    tmp_path: Path, header: bytes, data: bytes, length: int | None
) -> None:
    check(file_of(tmp_path / "fuzzed.safetensors", header, data, length=length))


@few
@given(position=st.integers(0, 400), replacement=st.binary(min_size=1, max_size=6), cut=st.integers(0, 300))
def test_a_damaged_file_raises_nothing_but_a_named_error(
    tmp_path: Path, position: int, replacement: bytes, cut: int
) -> None:
    whole = bytearray(safetensors_bytes(TWO))
    at = position % len(whole)
    whole[at : at + len(replacement)] = replacement
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(whole[: len(whole) - cut % 40])
    check(path)


def check(path: Path) -> None:
    """Check that a file gives either a named error, or tensors that tile the file's end and can be read."""
    try:
        stored = read_header(path)
    except SpecError:
        return
    size = path.stat().st_size
    assert sum(tensor.num_bytes for tensor in stored.values()) <= size - 8
    for tensor in stored.values():
        assert 8 <= tensor.start <= tensor.end <= size
        if tensor.dtype in {"F16", "BF16", "F32", "F64"}:
            assert open_tensor(tensor).shape == tensor.shape
