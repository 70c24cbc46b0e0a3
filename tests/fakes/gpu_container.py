# SPDX-License-Identifier: Apache-2.0
"""A stand-in of NVIDIA's container on a machine with a GPU: nvidia-smi, build tools, `tensorrt_llm`."""

import os
from pathlib import Path
from typing import NamedTuple

from trtllm_generator import write_fake
from trtllm_tools import FakeTools, write_fake_tools


class GpuContainer(NamedTuple):
    """The paths and settings of the stand-in."""

    tools: FakeTools
    packages: Path

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a process that is to find the stand-in."""
        path = [self.packages, self.tools.site, Path(__file__).parent]
        found = self.tools.environment() | {"PYTHONPATH": os.pathsep.join(map(str, path))}
        return found | {"NVIDIA_TRITON_SERVER_VERSION": "26.07"} | more


def write_gpu_container(
    folder: Path, *, version: str = "1.2.1", gpu_name: str = "NVIDIA H100 80GB HBM3"
) -> GpuContainer:
    """Write a container with a version of TensorRT-LLM and one GPU of SM 90."""
    tools = write_fake_tools(folder, num_gpus=1, gpu_name=gpu_name)
    metadata = next(tools.site.glob("tensorrt_llm-*")) / "METADATA"
    metadata.write_text(metadata.read_text().replace("1.2.1", version))
    metadata.parent.rename(tools.site / f"tensorrt_llm-{version}.dist-info")
    write_fake(folder / "packages", version=version)
    return GpuContainer(tools, folder / "packages")
