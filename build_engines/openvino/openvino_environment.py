# SPDX-License-Identifier: Apache-2.0
"""The environment that exports and quantizes for OpenVINO: `build-cpu`, or Trireme's own where that has nncf."""

from build_engines.stages.tool_environment import ToolEnvironment
from trireme.base.project_files import CODE_ROOT

BUILD_PYTHON = CODE_ROOT / ".tools" / "build-cpu" / "bin" / "python"
ENVIRONMENT = ToolEnvironment(
    BUILD_PYTHON,
    modules=("nncf", "optimum"),
    packages=(
        "openvino", "openvino_genai", "openvino_tokenizers", "nncf", "optimum_intel", "torch", "transformers",
    ),
    environment={"NNCF_CI": "1"},  # sends no telemetry
)  # fmt: skip
