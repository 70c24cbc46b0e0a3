# SPDX-License-Identifier: Apache-2.0
"""The engine of a deployment, as typed data: which spec is meant is told by its `provider`."""

from typing import Annotated

from pydantic import Field

from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec, TensorRtEngineSpec
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec

EngineSpec = Annotated[
    OpenVinoEngineSpec | SimulatedEngineSpec | TensorRtEngineSpec | PyTorchEngineSpec | VllmEngineSpec,
    Field(discriminator="provider"),
]
