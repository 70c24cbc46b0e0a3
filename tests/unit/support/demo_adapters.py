# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters of the demo model, small and random, that change what it answers."""

import json
from pathlib import Path

import numpy as np
from lora_adapters import CONFIG, write_safetensors

NUM_LAYERS, HIDDEN, KV, MLP = 5, 256, 128, 768  # of the demo model
SIZES = {"q_proj": (HIDDEN, HIDDEN), "k_proj": (HIDDEN, KV), "v_proj": (HIDDEN, KV), "o_proj": (HIDDEN, HIDDEN),
         "up_proj": (HIDDEN, MLP), "down_proj": (MLP, HIDDEN), "lm_head": (HIDDEN, 4096)}  # fmt: skip


def write_demo_adapter(
    folder: Path,
    *,
    seed: int,
    rank: int = 8,
    modules: tuple[str, ...] = ("q_proj", "v_proj"),
    layers: int = NUM_LAYERS,
    sizes: dict[str, tuple[int, int]] = SIZES,
    **config: object,
) -> Path:
    """Write an adapter that changes the demo model's answers."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = CONFIG | {"r": rank, "lora_alpha": rank, "target_modules": list(modules)} | config
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    generator = np.random.default_rng(seed)
    tensors = {}
    for layer in range(layers):
        for module in modules:
            part = "mlp" if module in ("up_proj", "down_proj") else "self_attn"
            name = f"base_model.model.model.layers.{layer}.{part}.{module}"
            size_in, size_out = sizes[module]
            for side, shape in (("A", (rank, size_in)), ("B", (size_out, rank))):
                tensors[f"{name}.lora_{side}.weight"] = (generator.standard_normal(shape) * 0.2).astype(np.float16)
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    return folder
