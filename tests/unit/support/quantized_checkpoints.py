# SPDX-License-Identifier: Apache-2.0
"""The demo model as other tools write quantized checkpoints: AutoAWQ's and GPTQModel's 4 bits, FP8 by tensor."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
from demo_release import DEMO_MODEL
from numpy.typing import NDArray

TARGET = DEMO_MODEL / "target"
GROUP = 32
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of eight output channels in 32 bits
_NAMES = {np.dtype(np.int32): "I32", np.dtype(np.float16): "F16", np.dtype(np.uint16): "BF16"}

Tensors = dict[str, NDArray[Any]]


def write_awq(folder: Path) -> Path:
    """Write the checkpoint as AutoAWQ does, rounded to the nearest; return the folder."""
    config = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
    return _write(folder, config, _awq)


def write_gptq(folder: Path) -> Path:
    """Write the checkpoint as GPTQModel does, rounded to the nearest; return the folder."""
    config = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}
    return _write(folder, config, _gptq)


def _write(folder: Path, quantization: dict[str, object], layer: Any) -> Path:
    shutil.copytree(TARGET, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"quantization_config": quantization, "dtype": "float16"}
    (folder / "config.json").write_text(json.dumps(config))
    out: Tensors = {}
    for name, bits in _read(TARGET / "model.safetensors").items():
        wide = (bits.astype(np.uint32) << 16).view(np.float32)
        if name.endswith("proj.weight"):
            out |= {f"{name.removesuffix('weight')}{part}": array for part, array in layer(wide).items()}
        else:
            out[name] = wide.astype(np.float16)
    _save(folder / "model.safetensors", out)
    return folder


def _rounded(weight: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float16]]:
    """Return weights of 0 to 15 around a zero point of 8, [in, out], and scales, [groups, out]."""
    rows = weight.T.reshape(-1, GROUP, weight.shape[0])
    scales = (np.abs(rows).max(axis=1) / 7).astype(np.float16)
    whole = np.clip(np.round(rows / scales[:, None].astype(np.float32)), -8, 7) + 8
    return whole.reshape(weight.shape[1], weight.shape[0]).astype(np.int64), scales


def _packed(values: NDArray[np.int64], order: tuple[int, ...] = tuple(range(8))) -> NDArray[np.int32]:
    """Return eight neighbours of the last side in 32 bits."""
    parts = values.reshape(*values.shape[:-1], -1, 8).astype(np.uint32)
    words = np.zeros(parts.shape[:-1], np.uint32)
    for place, index in enumerate(order):
        words |= parts[..., index] << np.uint32(4 * place)
    return words.view(np.int32)


def _gptq(weight: NDArray[np.float32]) -> Tensors:
    whole, scales = _rounded(weight)
    zeros = np.full((len(scales), weight.shape[0]), 7, np.int64)  # one less, as the format has it
    return {
        "qweight": np.ascontiguousarray(_packed(np.ascontiguousarray(whole.T)).T),
        "qzeros": _packed(zeros),
        "scales": scales,
        "g_idx": (np.arange(weight.shape[1]) // GROUP).astype(np.int32),
    }


def _awq(weight: NDArray[np.float32]) -> Tensors:
    whole, scales = _rounded(weight)
    zeros = np.full((len(scales), weight.shape[0]), 8, np.int64)
    return {"qweight": _packed(whole, _AWQ_ORDER), "qzeros": _packed(zeros, _AWQ_ORDER), "scales": scales}


def _read(file: Path) -> Tensors:
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    head = json.loads(data[8 : 8 + length])
    head.pop("__metadata__", None)
    return {
        name: np.frombuffer(data, np.uint16, (one["data_offsets"][1] - one["data_offsets"][0]) // 2,
                            8 + length + one["data_offsets"][0]).reshape(one["shape"])
        for name, one in head.items()
    }  # fmt: skip


def _save(file: Path, tensors: Tensors) -> None:
    head, place = {}, 0
    for name, array in tensors.items():
        end = place + array.nbytes
        head[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(head).encode()
    body = b"".join(array.tobytes() for array in tensors.values())
    file.write_bytes(struct.pack("<Q", len(text)) + text + body)
