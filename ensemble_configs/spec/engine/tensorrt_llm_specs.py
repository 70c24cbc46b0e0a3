# SPDX-License-Identifier: Apache-2.0
"""Engines of TensorRT-LLM, as typed data: a compiled one, a checkpoint on its PyTorch backend, and what both need."""

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ensemble_configs.spec.base import Boolean, Integer, NotNegative, Number, Positive, Spec
from ensemble_configs.spec.batch_limits import UPSTREAM_SEQS, UPSTREAM_TOKENS
from ensemble_configs.spec.end_times import MAX_CLOSE_S
from ensemble_configs.spec.engine.lora_spec import LoraSpec
from ensemble_configs.spec.engine.provider_spec import ProviderSpec
from ensemble_configs.spec.engine.speculation_specs import (
    DraftTargetSpec,
    Eagle3Spec,
    EagleSpec,
    LookaheadSpec,
    MedusaSpec,
    MtpSpec,
    NGramSpec,
    accepted_at_once,
)
from ensemble_configs.spec.extra_llm_args import ExtraArguments, check_extra_llm_args

MAX_RANKS = 1024  # of one engine; more is a mistake
TrtLlmVersion = Annotated[str, Field(pattern=r"^\d+\.\d+")]


class PerfKnobsSpec(Spec):
    """How a compiled engine runs its attention and its steps."""

    is_multi_block: Boolean = Field(default=True, description="several blocks of the GPU work on one sequence's decode")
    is_context_fmha_fp32_acc: Boolean = Field(default=False, description="prefill attention sums up in 32 bits")
    is_cuda_graph: Boolean = Field(default=False, description="record the steps of decode, and replay them")
    cuda_graph_cache_size: NotNegative = Field(default=0, description="recorded steps to keep")


class CacheTransceiverSpec(Spec):
    """How KV blocks travel between the servers of the prefill and of the decode phase."""

    backend: Literal["default", "ucx", "nixl", "mooncake", "mpi"] = Field(
        default="default", description="library that moves the blocks"
    )
    max_buffer_tokens: Positive | None = Field(
        default=None, description="tokens of a transfer's buffer; none: upstream's choice"
    )
    transfer_timeout_ms: Positive | None = Field(
        default=None, description="longest time of a transfer; none: upstream's choice"
    )


class _TrtLlmSpec(ProviderSpec):
    """The fields that both providers of TensorRT-LLM have; parallel sizes are of the whole engine, over all nodes."""

    max_num_seqs: Positive = Field(
        default=UPSTREAM_SEQS,
        description="requests in one in-flight batch; the default, upstream's, asks for no more than was built",
    )
    max_num_batched_tokens: Positive = Field(
        default=UPSTREAM_TOKENS,
        description="tokens in one step, longer prompts are chunked; the default as that of max_num_seqs",
    )
    tp_size: Positive = Field(default=1, le=MAX_RANKS, description="tensor parallel")
    pp_size: Positive = Field(default=1, le=MAX_RANKS, description="pipeline parallel")
    gpus_per_node: Positive | None = Field(default=None, description="none: as many as this machine has")
    num_kv_blocks: Positive | None = Field(default=None, description="none: what the memory fraction holds")
    free_gpu_memory_fraction: Number = Field(
        default=0.9, gt=0, le=1, description="of the free memory, for the KV cache"
    )
    host_cache_bytes: Integer = Field(
        default=0, ge=0, description="host memory that KV blocks move to before they are lost"
    )
    is_block_reuse: Boolean = Field(default=True, description="keep KV blocks of finished prompts for reuse")
    is_partial_block_reuse: Boolean = Field(default=True, description="reuse the part of a block that matches a prompt")
    is_cache_salted: Boolean = Field(
        default=True,
        description="requests with a tenant reuse KV blocks of that tenant alone: how soon an answer begins tells "
        "nobody what others asked",
    )
    max_attention_window: tuple[Positive, ...] | None = Field(
        default=None, description="tokens, layer by layer, repeated"
    )
    sink_tokens: Positive | None = Field(default=None, description="tokens that stay in a sliding window")
    is_chunked_prefill: Boolean = Field(
        default=True, description="prefill beside decoding, max_num_batched_tokens at most"
    )
    capacity_scheduler_policy: Literal["max_utilization", "guaranteed_no_evict", "static_batch"] = Field(
        default="guaranteed_no_evict",
        description="which requests share the KV cache; max_utilization pauses requests when the cache is full",
    )
    context_chunking_policy: Literal["first_come_first_served", "equal_progress"] | None = Field(
        default=None, description="order in which chunks of prompts run; none: upstream's choice"
    )
    tokenizer_dir: Path | None = Field(default=None, description="for guided decoding: its grammars are of characters")
    lora: LoraSpec | None = None
    cache_transceiver: CacheTransceiverSpec | None = None
    max_beam_width: Positive = Field(
        default=1, description="beams that a request may search with; with pytorch: that every request must search with"
    )
    launcher: Literal["auto", "mpirun", "none"] = Field(
        default="auto",
        description="what starts the engine's process and its ranks; auto: mpirun for several ranks, and one process "
        "without ranks for one",
    )
    tensorrt_llm: TrtLlmVersion | None = Field(
        default=None, description="version that serves it; none: any whose names were read"
    )
    extra_llm_args: ExtraArguments = Field(
        default={}, description="arguments of upstream's LLM that have no field here, passed on as they are"
    )

    @property
    def world_size(self) -> int:
        """GPUs of one engine."""
        return self.tp_size * self.pp_size

    @property
    def close_timeout_s(self) -> float:
        """Seconds that NCCL and CUDA may take to free what every rank holds; tens of them with 8 ranks."""
        return min(15.0 + 5.0 * self.world_size, MAX_CLOSE_S)

    @model_validator(mode="after")
    def _extra_arguments_are_upstreams(self) -> "_TrtLlmSpec":
        check_extra_llm_args(self)
        return self

    @model_validator(mode="after")
    def _ranks_are_few(self) -> "_TrtLlmSpec":
        sizes = {name: getattr(self, name) for name in ("tp_size", "pp_size", "cp_size") if hasattr(self, name)}
        if (num_ranks := math.prod(sizes.values())) > MAX_RANKS:
            raise ValueError(f"{' * '.join(sizes)} is {num_ranks} ranks; an engine may have {MAX_RANKS}")
        return self

    @model_validator(mode="after")
    def _pieces_fit_a_step(self) -> "_TrtLlmSpec":
        # A piece of a chunked prompt is of whole KV blocks; a compiled engine's are of 32 tokens if of no other number.
        block_tokens = getattr(self, "kv_block_tokens", 32)
        if self.is_chunked_prefill and self.max_num_batched_tokens < block_tokens:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is less than the smallest piece of a prompt, "
                f"a KV block of {block_tokens} tokens; raise it, or set is_chunked_prefill: false"
            )
        return self

    def _check_guides(self, guided_decoding_backend: str | None) -> None:
        if (guided_decoding_backend is None) != (self.tokenizer_dir is None):
            raise ValueError("guided_decoding_backend and tokenizer_dir go together; set both or none")
        if guided_decoding_backend is not None and self.capacity_scheduler_policy == "max_utilization":
            raise ValueError(
                "guided_decoding_backend does not go with capacity_scheduler_policy: max_utilization, for TensorRT-LLM "
                "begins the grammar of a request anew after a pause of the request; use guaranteed_no_evict"
            )


class TensorRtEngineSpec(_TrtLlmSpec):
    """A compiled TensorRT-LLM engine; TensorRT-LLM before 1.3."""

    provider: Literal["tensorrt"]
    dir: Path = Field(description="engine folder: config.json and rank0.engine, rank1.engine, ...")
    end_ids: tuple[NotNegative, ...] | None = Field(
        default=None, description="end tokens; none: those in a generation_config.json beside the engine"
    )
    guided_decoding_backend: Literal["xgrammar"] | None = Field(
        default=None, description="library of guided decoding; none: guides are refused"
    )
    is_gathering_generation_logits: Boolean = Field(
        default=False,
        description="needed for return_log_probs and return_generation_logits; any engine can be loaded with it, and "
        "keeps the logits of 8 steps of max_num_seqs sequences on the GPU then",
    )
    is_gathering_context_logits: Boolean = Field(
        default=False, description="needed for return_context_logits, by an engine built with it"
    )
    is_normalizing_log_probs: Boolean = Field(
        default=False, description="divide log probabilities by the length; inflight_batcher_llm's default was on"
    )
    perf_knobs: PerfKnobsSpec = PerfKnobsSpec()
    speculation: Annotated[LookaheadSpec | MedusaSpec | EagleSpec, Field(discriminator="method")] | None = None

    @property
    def max_tokens_per_step(self) -> int:
        """With all drafts accepted."""
        return accepted_at_once(self.speculation)

    @model_validator(mode="after")
    def _guides_can_be_followed(self) -> "TensorRtEngineSpec":
        self._check_guides(self.guided_decoding_backend)
        return self


class PyTorchEngineSpec(_TrtLlmSpec):
    """A checkpoint on TensorRT-LLM's PyTorch backend."""

    provider: Literal["pytorch"]
    dir: Path = Field(description="checkpoint folder: config.json and safetensors, quantized or not")
    ep_size: Positive | None = Field(
        default=None, description="expert parallel, within tp_size; none: upstream's choice"
    )
    moe_tp_size: Positive | None = Field(default=None, description="tensor parallel of the experts")
    cp_size: Positive = Field(default=1, le=MAX_RANKS, description="context parallel")
    is_attention_dp: Boolean = Field(default=False, description="attention by data parallel ranks, not tensor parallel")
    kv_cache_dtype: Literal["auto", "fp8", "nvfp4"] = Field(
        default="auto", description="number format of the KV cache; auto: the checkpoint's"
    )
    kv_block_tokens: Positive = Field(default=32, description="tokens of a KV block")
    sampler: Literal["torch", "trtllm"] = Field(
        default="torch", description="trtllm knows seeds and penalties, and no speculation"
    )
    moe_backend: Literal["cutlass", "cutedsl", "wideep", "trtllm", "deepgemm", "vanilla", "triton"] = Field(
        default="cutlass", description="kernels of the experts"
    )
    is_cuda_graph: Boolean = Field(default=True, description="record the steps of decode, and replay them")
    is_overlap_scheduler: Boolean = Field(
        default=True, description="begin a step before the tokens of the last one are on the host"
    )
    guided_decoding_backend: Literal["xgrammar", "llguidance"] | None = Field(
        default=None, description="library of guided decoding; none: guides are refused"
    )
    speculation: Annotated[NGramSpec | MtpSpec | Eagle3Spec | DraftTargetSpec, Field(discriminator="method")] | None = (
        None
    )

    @property
    def world_size(self) -> int:
        """GPUs of one engine."""
        return self.tp_size * self.pp_size * self.cp_size

    @property
    def max_tokens_per_step(self) -> int:
        """With all drafts accepted."""
        return accepted_at_once(self.speculation)

    @model_validator(mode="after")
    def _parts_fit(self) -> "PyTorchEngineSpec":
        self._check_guides(self.guided_decoding_backend)
        if self.sampler == "trtllm" and self.speculation is not None:
            raise ValueError("sampler trtllm knows no speculation; use sampler torch")
        self._refuse_beams_that_upstream_cannot_search()
        if self.tp_size % ((self.ep_size or 1) * (self.moe_tp_size or 1)):
            raise ValueError(
                f"ep_size ({self.ep_size or 1}) * moe_tp_size ({self.moe_tp_size or 1}) "
                f"must divide tp_size ({self.tp_size})"
            )
        return self

    def _refuse_beams_that_upstream_cannot_search(self) -> None:
        beams = f"max_beam_width ({self.max_beam_width})"
        has_one_sampler = self.tensorrt_llm is not None and not self.tensorrt_llm.startswith("1.2")
        if self.max_beam_width > 1 and self.sampler != "trtllm" and not has_one_sampler:
            raise ValueError(
                f"{beams} needs sampler: trtllm, which searches with beams; of TensorRT-LLM 1.3 the one sampler does: "
                "name the version in tensorrt_llm"
            )
        if self.max_beam_width > 1 and self.is_overlap_scheduler:
            raise ValueError(f"{beams} needs is_overlap_scheduler: false; beams are chosen before the next step begins")
