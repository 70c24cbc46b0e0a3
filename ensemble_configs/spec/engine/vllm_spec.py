# SPDX-License-Identifier: Apache-2.0
"""An engine of vLLM, as typed data."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ensemble_configs.spec.base import Boolean, Number, Positive, PositiveSize
from ensemble_configs.spec.end_times import MAX_CLOSE_S
from ensemble_configs.spec.engine.kv_transfer_spec import KvTransferSpec
from ensemble_configs.spec.engine.lora_spec import LoraSpec
from ensemble_configs.spec.engine.provider_spec import BATCH_WAIT, ProviderSpec
from ensemble_configs.spec.engine.speculation_specs import (
    DraftTargetSpec,
    Eagle3Spec,
    PromptLookupSpec,
    accepted_at_once,
)

VllmSpeculation = PromptLookupSpec | DraftTargetSpec | Eagle3Spec
_MAX_RANKS = 1024  # of one engine; more is a mistake
# Ranks of a dense model are engines of their own in vLLM as well; those of a model of experts step together, by a
# coordinator, which is not run here.
_DATA_PARALLEL = frozenset({"dp_size", "data_parallel_size"})


class VllmEngineSpec(ProviderSpec):
    """A checkpoint on vLLM, on GPUs or on a CPU; the engine's process runs in an environment of its own."""

    provider: Literal["vllm"]
    dir: Path = Field(description="checkpoint folder: config.json and safetensors, quantized or not")
    venv_dir: Path | None = Field(
        default=None,
        description="virtual environment with vLLM, of which bin/python runs the engine; none: the server's own",
    )
    device: Literal["gpu", "cpu"] = Field(default="gpu", description="what the installed vLLM was built for")
    vllm: Annotated[str, Field(pattern=r"^\d+\.\d+")] | None = Field(
        default=None, description="version that serves it; none: any whose names were read"
    )
    max_num_batched_tokens: Positive = Field(default=2048, description="tokens in one step; longer prompts are chunked")
    tp_size: Positive = Field(default=1, le=_MAX_RANKS, description="tensor parallel")
    pp_size: Positive = Field(default=1, le=_MAX_RANKS, description="pipeline parallel")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        default="auto", description="number format of the weights that are not quantized; auto: the checkpoint's"
    )
    num_kv_blocks: Positive | None = Field(default=None, description="none: what the memory holds")
    kv_block_tokens: Positive | None = Field(
        default=None, description="tokens of a KV block; none: vLLM's choice, 16 on most GPUs and 128 on a CPU"
    )
    kv_cache_bytes: PositiveSize | None = Field(
        default=None,
        description="memory for the KV cache, of all ranks alike; none: what gpu_memory_utilization leaves",
    )
    kv_cache_dtype: Literal["auto", "fp8", "fp8_e4m3", "fp8_e5m2"] = Field(
        default="auto", description="number format of the KV cache; auto: the model's"
    )
    gpu_memory_utilization: Number = Field(
        default=0.9, gt=0, le=1, description="of a GPU's whole memory, for weights and KV cache together"
    )
    is_block_reuse: Boolean = Field(default=True, description="keep KV blocks of finished prompts for reuse")
    is_cache_salted: Boolean = Field(
        default=True,
        description="requests with a tenant reuse KV blocks of that tenant alone: how soon an answer begins tells "
        "nobody what others asked",
    )
    is_compiled: Boolean = Field(
        default=True, description="compile the model, and record CUDA graphs; false: a start of seconds, slower steps"
    )
    num_threads: Positive | None = Field(
        default=None,
        le=1024,
        description="CPU threads of an engine on a CPU, of each rank; none: one for each core (of "
        "placement.cpus, where that is given), divided among the ranks",
    )
    lora: LoraSpec | None = None
    speculation: Annotated[VllmSpeculation, Field(discriminator="method")] | None = None
    kv_transfer: KvTransferSpec | None = Field(
        default=None, description="none: the engine hands no KV cache over and takes none"
    )
    batch_wait_ms: Number = Field(default=1.0, ge=0, le=100, description=BATCH_WAIT)

    @model_validator(mode="before")
    @classmethod
    def _data_parallel_is_not_of_an_engine(cls, given: object) -> object:
        if isinstance(given, dict) and (named := _DATA_PARALLEL.intersection(given)):
            raise ValueError(
                f"{min(named)} is no key: one engine here is one data parallel rank of vLLM's; divide the model by "
                "tp_size, and for more of the same serve several servers (replicas in Kubernetes; on one machine a "
                "server for each set of placement.gpus) behind gateway.servers, which chooses by prefix and load"
            )
        return given

    @model_validator(mode="after")
    def _adapters_go_with_drafts(self) -> "VllmEngineSpec":
        if self.lora is not None and isinstance(self.speculation, Eagle3Spec):
            raise ValueError(
                "lora does not go with speculation.method: eagle3, for vLLM 0.32 ends when it drafts beside adapters; "
                "leave one out, or draft by ngram or draft_target"
            )
        return self

    @model_validator(mode="after")
    def _a_cpu_has_one_stage(self) -> "VllmEngineSpec":
        if self.is_on_cpu and self.pp_size > 1:
            raise ValueError(
                f"pp_size ({self.pp_size}) does not go with device: cpu, for the second stage of vLLM's CPU build ends "
                "at the first request; set pp_size to 1 and divide the model by tp_size"
            )
        return self

    @model_validator(mode="after")
    def _transfers_were_tried_without(self) -> "VllmEngineSpec":
        if self.kv_transfer is not None and self.speculation is not None:
            raise ValueError(
                "kv_transfer beside speculation has not been tried: what the drafts' own layers hold would have to "
                "travel; leave one out"
            )
        return self

    @property
    def max_tokens_per_step(self) -> int:
        """With all drafts accepted."""
        return accepted_at_once(self.speculation)

    @property
    def is_on_cpu(self) -> bool:
        """Return whether the engine computes on the host."""
        return self.device == "cpu"

    @property
    def world_size(self) -> int:
        """Ranks of one engine; on GPUs, one on each."""
        return self.tp_size * self.pp_size

    @property
    def close_timeout_s(self) -> float:
        """Seconds that the ranks may take to free what they hold; 0 where there is one, in the engine's process."""
        return 0.0 if self.world_size == 1 else min(15.0 + 5.0 * self.world_size, MAX_CLOSE_S)

    @property
    def batch_wait_s(self) -> float:
        """Seconds that an idle engine waits, after a request, for another one."""
        return self.batch_wait_ms / 1000

    @model_validator(mode="after")
    def _a_host_keeps_its_memory(self) -> "VllmEngineSpec":
        if self.is_on_cpu and self.kv_cache_bytes is None:
            raise ValueError("device: cpu needs kv_cache_bytes; without it vLLM takes nine tenths of the host's memory")
        return self
