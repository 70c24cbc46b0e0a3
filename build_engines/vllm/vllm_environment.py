# SPDX-License-Identifier: Apache-2.0
"""The environment that has llm-compressor: one that is named, Trireme's own, or `.tools/compress-cpu` of a checkout."""

import dataclasses

from build_engines.stages.build_job import Tools
from build_engines.stages.tool_environment import ToolEnvironment
from trireme.base.project_files import CODE_ROOT

COMPRESS_PYTHON = CODE_ROOT / ".tools" / "compress-cpu" / "bin" / "python"
_ENVIRONMENT = ToolEnvironment(
    COMPRESS_PYTHON,
    modules=("llmcompressor",),
    packages=("llmcompressor", "compressed_tensors", "torch", "transformers"),
    environment={"TOKENIZERS_PARALLELISM": "false"},  # llm-compressor sets it, with a warning
)


def environment(tools: Tools) -> ToolEnvironment:
    """Return the environment that quantizes."""
    if tools.compressor_venv is None:
        return _ENVIRONMENT
    return dataclasses.replace(_ENVIRONMENT, python=tools.compressor_venv / "bin" / "python", modules=())
