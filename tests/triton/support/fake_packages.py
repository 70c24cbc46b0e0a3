# SPDX-License-Identifier: Apache-2.0
"""The fake `tensorrt_llm` in a folder of its own, for the engine's process of a real server to import."""

import shutil
from pathlib import Path

import trtllm_generator


def install_fake(folder: Path) -> Path:
    """Write the package, its behaviour and its facts; the folder is for PYTHONPATH."""
    trtllm_generator.write_fake(folder)
    fakes = Path(trtllm_generator.__file__).parent  # not on the path as a whole: Triton's own module is there as a fake
    for module in fakes.glob("trtllm_*.py"):
        shutil.copy(module, folder)
    shutil.copytree(fakes / "trtllm_facts", folder / "trtllm_facts")
    return folder
