# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters as PEFT writes them, small and random."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

CONFIG = {"peft_type": "LORA", "bias": "none", "use_dora": False, "modules_to_save": None, "task_type": "CAUSAL_LM"}


def write_adapter(
    folder: Path, *, rank: int = 8, modules: Sequence[str] = ("q_proj", "v_proj"), seed: int = 1, **config: object
) -> Path:
    """Write `adapter_config.json` and `adapter_model.safetensors` for two layers of width 16."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = CONFIG | {"r": rank, "lora_alpha": 2 * rank, "target_modules": list(modules)} | config
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    random = np.random.default_rng(seed)
    names = [
        f"base_model.model.model.layers.{layer}.self_attn.{module}.lora_{side}.weight"
        for layer in range(2)
        for module in modules
        for side in "AB"
    ]
    shapes = [(rank, 16) if "lora_A" in name else (16, rank) for name in names]
    tensors = [random.standard_normal(shape).astype(np.float16) for shape in shapes]
    write_safetensors(folder / "adapter_model.safetensors", dict(zip(names, tensors, strict=True)))
    return folder


def write_safetensors(path: Path, tensors: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float16]]]) -> None:
    """Write half-precision tensors."""
    header: dict[str, object] = {}
    position = 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": "F16",
            "shape": list(tensor.shape),
            "data_offsets": [position, position + tensor.nbytes],
        }
        position += tensor.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensor.tobytes() for tensor in tensors.values()))
