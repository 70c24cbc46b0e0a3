# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters by request, as typed data: for TensorRT-LLM and vLLM, which load and free them each in its own way."""

from pathlib import Path

from pydantic import Field

from ensemble_configs.spec.base import Positive, Spec


class LoraSpec(Spec):
    """Low-rank adapters, chosen by request."""

    dir: Path = Field(description="holds a folder for each adapter, named by its lora_name or lora_task_id")
    max_adapters: Positive = Field(
        default=64,
        description="that an engine may load in its life; TensorRT-LLM keeps each in host memory, vLLM frees them and "
        "has no such limit",
    )
    max_rank: Positive = Field(default=64, description="highest rank of an adapter; vLLM's highest is 512")
    target_modules: tuple[str, ...] = Field(
        default=(),
        description="attn_q, attn_k, ...; none: those of the adapters at start, and of vLLM all that the model has",
    )
    max_device_adapters: Positive | None = Field(
        default=None,
        description="adapters in GPU memory at once, which is how many a step of vLLM serves; none: upstream's choice, "
        "1 of vLLM",
    )
    max_host_adapters: Positive | None = Field(
        default=None,
        description="adapters in host memory at once, of whose requests vLLM's scheduler has any; none: upstream's "
        "choice, of vLLM as many as max_device_adapters",
    )
