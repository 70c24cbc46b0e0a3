# SPDX-License-Identifier: Apache-2.0
"""Writes `golden_logits.npz`: logits of the demo model and of the tiny random ones, computed by transformers.

They are what `tests/oracles/sharded_reference.py` is compared with, so they come from code that is not ours. Run
in the environment of `python3 scripts/bootstrap.py --only build-cpu`, from the root of the repository:

    PYTHONPATH=.:tests/unit .tools/build-cpu/bin/python tests/data/make_golden_logits.py
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tiny_checkpoints import TINY, weights_hash, write_tiny
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples/demo_model/target"
TINY_IDS = [0, 7, 3, 41, 7, 22, 13, 30, 5, 18]
DEMO_IDS = [0, 1215, 302, 77, 4000, 19, 19, 2501, 640, 33, 1000, 2048]


def logits_of(checkpoint: Path, input_ids: list[int]) -> npt.NDArray[np.float32]:
    """``[num_tokens, vocab_size] float32`` in 32-bit arithmetic, attention written out."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        logits: npt.NDArray[np.float32] = model(torch.tensor([input_ids])).logits[0].numpy()
    return logits


def main() -> None:
    """Write the file beside this one."""
    golden: dict[str, npt.NDArray[Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in TINY:
            checkpoint = write_tiny(Path(folder) / name, name)
            golden |= {f"{name}.ids": np.array(TINY_IDS), f"{name}.logits": logits_of(checkpoint, TINY_IDS)}
            golden[f"{name}.sha256"] = np.array(weights_hash(checkpoint))
    golden |= {"demo.ids": np.array(DEMO_IDS), "demo.logits": logits_of(DEMO, DEMO_IDS)[-3:]}
    golden["demo.sha256"] = np.array(weights_hash(DEMO))
    np.savez_compressed(Path(__file__).with_name("golden_logits.npz"), **golden)


if __name__ == "__main__":
    main()
