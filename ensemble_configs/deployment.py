# SPDX-License-Identifier: Apache-2.0
"""What one deployment serves, as typed data: the YAML file, the defaults and the cross-checks.

Everything that Triton reads is rendered from a `DeploymentSpec` (`ensemble_configs.repository`); nothing downstream
has a default of its own.
"""

from pathlib import Path
from typing import Annotated, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from ensemble_configs.errors import SpecError

Port = Annotated[int, Field(ge=1, le=65535)]
Positive = Annotated[int, Field(ge=1)]
Model = TypeVar("Model", bound=BaseModel)


class _Spec(BaseModel):
    """Frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="after")
    @classmethod
    def _resolve_paths(cls, value: object, info: ValidationInfo) -> object:
        # Relative paths are meant from the file that names them, wherever the command is run.
        base = (info.context or {}).get("base_dir")
        return (base / value).resolve() if base is not None and isinstance(value, Path) else value


class TokenizerSpec(_Spec):
    """The tokenizer of both ends of the ensemble."""

    dir: Path = Field(description="folder with tokenizer.json")
    add_special_tokens: bool = Field(default=True, description="put the tokenizer's own tokens (BOS) around a prompt")
    skip_special_tokens: bool = Field(default=True, description="leave special tokens out of the text")


class _BatchSpec(_Spec):
    """What every provider needs to know."""

    max_seq_len: Positive = Field(default=2048, description="prompt and output together, tokens")
    max_num_seqs: Positive = Field(default=64, description="requests in one in-flight batch")
    max_num_batched_tokens: Positive = Field(default=512, description="tokens in one step; longer prompts are chunked")
    watchdog_s: float = Field(
        default=30.0,
        ge=2,
        description="an engine that is silent for so long is ended and started again; more than its longest step takes",
    )


class _EngineSpec(_BatchSpec):
    """What a provider needs to know whose KV cache is as large as it is told."""

    num_kv_blocks: Positive = Field(default=2048, description="KV cache blocks, shared by all requests")


class OpenVinoEngineSpec(_EngineSpec):
    """OpenVINO GenAI continuous batching on the CPU."""

    provider: Literal["openvino"]
    dir: Path = Field(description="folder with openvino_model.xml")
    num_threads: Positive | None = Field(default=None, description="CPU threads; none: all cores")
    kv_cache_precision: Literal["auto", "u8", "u4", "f16", "bf16"] = "auto"
    is_prefix_caching: bool = Field(default=True, description="keep KV blocks of finished prompts for reuse")
    draft_dir: Path | None = Field(default=None, description="folder of a small model that drafts tokens for this one")
    max_ngram_size: Positive | None = Field(
        default=None, description="draft what followed the last tokens, up to so many, earlier in the prompt"
    )
    num_assistant_tokens: Positive | None = Field(default=None, description="tokens to draft in a step; none: 4")

    @property
    def num_draft_tokens(self) -> int:
        """Tokens to draft in a step; 0 without speculative decoding."""
        if self.draft_dir is None and self.max_ngram_size is None:
            return 0
        return self.num_assistant_tokens or 4

    @model_validator(mode="after")
    def _drafts_come_from_one_place(self) -> "OpenVinoEngineSpec":
        if self.draft_dir is not None and self.max_ngram_size is not None:
            raise ValueError("draft_dir and max_ngram_size exclude each other; keep one")
        if self.draft_dir is not None and self.is_prefix_caching:
            # OpenVINO 2026.4 breaks when sampling rejects a draft in a block that it has hashed for reuse.
            raise ValueError("draft_dir needs is_prefix_caching: false")
        if self.num_assistant_tokens is not None and not self.num_draft_tokens:
            raise ValueError("num_assistant_tokens needs draft_dir or max_ngram_size")
        return self


class SimulatedEngineSpec(_EngineSpec):
    """A deterministic engine with a real paged-KV scheduler and no model: time is a formula, tokens are a hash."""

    provider: Literal["simulated"]
    mode: Literal["hash", "echo"] = Field(default="hash", description="echo: the output is the prompt, over and over")
    vocab_size: Positive = 4096
    kv_block_tokens: Positive = 16
    seed: int = 0
    step_ms: float = Field(default=1.0, ge=0, description="a step's fixed time")
    prefill_us_per_token: float = Field(default=20.0, ge=0)
    decode_us_per_seq: float = Field(default=50.0, ge=0)


class LookaheadSpec(_Spec):
    """Lookahead decoding: n-grams guessed by the model itself; an engine built for it."""

    method: Literal["lookahead"]
    window_size: Positive
    ngram_size: Positive
    verification_set_size: Positive


class MedusaSpec(_Spec):
    """Medusa heads in the engine."""

    method: Literal["medusa"]
    max_draft_len: Positive
    num_heads: Positive
    choices: tuple[tuple[int, ...], ...] | None = Field(default=None, description="tree of drafts; none: the engine's")


class EagleSpec(_Spec):
    """EAGLE-1 or -2, built into the engine."""

    method: Literal["eagle"]
    max_draft_len: Positive
    num_layers: Positive | None = None
    choices: tuple[tuple[int, ...], ...] | None = Field(default=None, description="tree of drafts; none: the engine's")
    is_greedy_sampling: bool = True
    posterior_threshold: float | None = Field(default=None, ge=0, le=1)
    is_dynamic_tree: bool = False
    dynamic_tree_max_top_k: Positive | None = None


class NGramSpec(_Spec):
    """Drafts looked up in the prompt and the output so far."""

    method: Literal["ngram"]
    max_draft_len: Positive
    max_matching_ngram_size: Positive
    is_keeping_all: bool = Field(default=True, description="keep every match of an n-gram, not one")
    is_using_oldest: bool = Field(default=True, description="take the oldest match first")
    is_public_pool: bool = Field(default=True, description="requests share their n-grams")


class MtpSpec(_Spec):
    """Multi-token prediction layers of the model itself (DeepSeek)."""

    method: Literal["mtp"]
    num_nextn_predict_layers: Positive = 1
    is_vanilla: bool = False
    is_relaxed_for_thinking: bool = Field(default=False, description="accept near misses while the model thinks")
    relaxed_top_k: Positive = 1
    relaxed_delta: float = Field(default=0.0, ge=0)


class Eagle3Spec(_Spec):
    """EAGLE-3 with a draft checkpoint."""

    method: Literal["eagle3"]
    dir: Path = Field(description="folder of the draft checkpoint")
    max_draft_len: Positive
    is_one_model: bool = Field(default=True, description="draft and target run as one model")


class DraftTargetSpec(_Spec):
    """A smaller model drafts."""

    method: Literal["draft_target"]
    dir: Path = Field(description="folder of the draft checkpoint")
    max_draft_len: Positive


class LoraSpec(_Spec):
    """Low-rank adapters, chosen by request."""

    dir: Path = Field(description="holds one adapter folder for each task id, named by the number")
    max_rank: Positive = 64
    target_modules: tuple[str, ...] = Field(default=(), description="attn_q, attn_k, ...; none: the adapters' own")
    max_device_adapters: Positive | None = None
    max_host_adapters: Positive | None = None


class CacheTransceiverSpec(_Spec):
    """How KV blocks travel between the servers of the prefill and of the decode phase."""

    backend: Literal["default", "ucx", "nixl", "mooncake", "mpi"] = "default"
    max_buffer_tokens: Positive | None = None
    transfer_timeout_ms: Positive | None = None


class _TrtLlmSpec(_BatchSpec):
    """What both providers of TensorRT-LLM need to know; parallel sizes are of the whole engine, over all nodes."""

    tp_size: Positive = Field(default=1, description="tensor parallel")
    pp_size: Positive = Field(default=1, description="pipeline parallel")
    gpus_per_node: Positive | None = Field(default=None, description="none: as many as this machine has")
    num_kv_blocks: Positive | None = Field(default=None, description="none: what the memory fraction holds")
    free_gpu_memory_fraction: float = Field(default=0.9, gt=0, le=1, description="of the free memory, for the KV cache")
    host_cache_bytes: int = Field(
        default=0, ge=0, description="host memory that KV blocks move to before they are lost"
    )
    is_block_reuse: bool = Field(default=True, description="keep KV blocks of finished prompts for reuse")
    is_partial_block_reuse: bool = True
    max_attention_window: tuple[Positive, ...] | None = Field(
        default=None, description="tokens, layer by layer, repeated"
    )
    sink_tokens: Positive | None = Field(default=None, description="tokens that stay in a sliding window")
    is_chunked_prefill: bool = Field(
        default=True, description="prefill beside decoding, max_num_batched_tokens at most"
    )
    capacity_scheduler_policy: Literal["max_utilization", "guaranteed_no_evict", "static_batch"] = "guaranteed_no_evict"
    context_chunking_policy: Literal["first_come_first_served", "equal_progress"] | None = None
    tokenizer_dir: Path | None = Field(default=None, description="for guided decoding: its grammars are of characters")
    lora: LoraSpec | None = None

    def _require_tokenizer(self, guided_decoding_backend: str | None) -> None:
        if (guided_decoding_backend is None) != (self.tokenizer_dir is None):
            raise ValueError("guided_decoding_backend and tokenizer_dir go together; set both or none")


class TensorRtEngineSpec(_TrtLlmSpec):
    """A compiled TensorRT-LLM engine; TensorRT-LLM before 1.3."""

    provider: Literal["tensorrt"]
    dir: Path = Field(description="engine folder: config.json and rank0.engine, rank1.engine, ...")
    end_ids: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        default=None, description="end tokens; none: those in a generation_config.json beside the engine"
    )
    guided_decoding_backend: Literal["xgrammar"] | None = None
    is_gathering_generation_logits: bool = Field(
        default=False, description="needed for return_log_probs, by an engine built with it"
    )
    speculation: Annotated[LookaheadSpec | MedusaSpec | EagleSpec, Field(discriminator="method")] | None = None

    @property
    def world_size(self) -> int:
        """GPUs of one engine."""
        return self.tp_size * self.pp_size

    @model_validator(mode="after")
    def _guides_have_a_tokenizer(self) -> "TensorRtEngineSpec":
        self._require_tokenizer(self.guided_decoding_backend)
        return self


class PyTorchEngineSpec(_TrtLlmSpec):
    """A checkpoint on TensorRT-LLM's PyTorch backend."""

    provider: Literal["pytorch"]
    dir: Path = Field(description="checkpoint folder: config.json and safetensors, quantized or not")
    ep_size: Positive | None = Field(
        default=None, description="expert parallel, within tp_size; none: upstream's choice"
    )
    moe_tp_size: Positive | None = Field(default=None, description="tensor parallel of the experts")
    cp_size: Positive = Field(default=1, description="context parallel")
    is_attention_dp: bool = Field(default=False, description="attention by data parallel ranks, not tensor parallel")
    kv_cache_dtype: Literal["auto", "fp8", "nvfp4"] = "auto"
    kv_block_tokens: Positive = 32
    sampler: Literal["torch", "trtllm"] = Field(
        default="torch", description="trtllm knows seeds and penalties, and no speculation"
    )
    moe_backend: Literal["cutlass", "cutedsl", "wideep", "trtllm", "deepgemm", "vanilla", "triton"] = "cutlass"
    is_cuda_graph: bool = True
    is_overlap_scheduler: bool = True
    guided_decoding_backend: Literal["xgrammar", "llguidance"] | None = None
    speculation: Annotated[NGramSpec | MtpSpec | Eagle3Spec | DraftTargetSpec, Field(discriminator="method")] | None = (
        None
    )
    cache_transceiver: CacheTransceiverSpec | None = None

    @property
    def world_size(self) -> int:
        """GPUs of one engine."""
        return self.tp_size * self.pp_size * self.cp_size

    @model_validator(mode="after")
    def _parts_fit(self) -> "PyTorchEngineSpec":
        self._require_tokenizer(self.guided_decoding_backend)
        if self.sampler == "trtllm" and self.speculation is not None:
            raise ValueError("sampler trtllm knows no speculation; use sampler torch")
        if self.tp_size % ((self.ep_size or 1) * (self.moe_tp_size or 1)):
            raise ValueError(
                f"ep_size ({self.ep_size or 1}) * moe_tp_size ({self.moe_tp_size or 1}) "
                f"must divide tp_size ({self.tp_size})"
            )
        return self


EngineSpec = Annotated[
    OpenVinoEngineSpec | SimulatedEngineSpec | TensorRtEngineSpec | PyTorchEngineSpec, Field(discriminator="provider")
]


class TritonSpec(_Spec):
    """The server around the models; ports may be overridden on the command line."""

    host: str = Field(default="127.0.0.1", description="address to listen on")
    http_port: Port = 8000
    grpc_port: Port = 8001
    metrics_port: Port = 8002
    triton_max_batch_size: Positive = Field(
        default=256, description="largest batch Triton hands to postprocessing at once"
    )
    keepalive_time_ms: Positive = Field(
        default=10_000, description="silence on a gRPC connection after which the server asks whether its peer is there"
    )
    keepalive_timeout_ms: Positive = Field(
        default=5_000, description="how long it waits for the answer before it ends the connection and its streams"
    )
    hang_timeout_s: float = Field(
        default=10.0, ge=1, description="a server or model process that is silent for so long is taken for dead"
    )
    max_restarts: int = Field(
        default=5, ge=0, description="of a server that died, within restart_window_s; after that `trireme serve` ends"
    )
    restart_window_s: float = Field(default=600.0, gt=0)
    restart_backoff_s: float = Field(
        default=1.0,
        ge=0,
        description="before the second restart in the window, doubled for each one more; the first is at once",
    )

    @model_validator(mode="after")
    def _ports_differ(self) -> "TritonSpec":
        ports = [self.http_port, self.grpc_port, self.metrics_port]
        if len(set(ports)) < len(ports):
            raise ValueError(f"http_port, grpc_port and metrics_port must differ, got {ports}")
        return self


class ResponseSpec(_Spec):
    """Defaults of requests that do not say."""

    exclude_input_in_output: bool = Field(
        default=False, description="upstream's default: a whole response has the prompt"
    )
    max_chunk_delay_ms: float = Field(
        default=0.0, ge=0, description="how long tokens may wait to leave together; a stream's first token never waits"
    )
    target_chunks_per_s: float = Field(
        default=0.0,
        ge=0,
        description="of all streams; n streams wait n / this, at most max_chunk_delay_ms; 0: always that long",
    )


class ReleaseSpec(_Spec):
    """What may differ between two releases that one server holds: `<version>/release.json`."""

    release: Positive
    tokenizer: TokenizerSpec
    engine: EngineSpec
    responses: ResponseSpec = ResponseSpec()


class DeploymentSpec(ReleaseSpec):
    """One deployment file."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", description="also the folder under build/")]
    release: Positive = 1
    triton: TritonSpec = TritonSpec()


def load_deployment(path: Path) -> DeploymentSpec:
    """Read a deployment file; relative paths in it become absolute, from the file's own folder.

    Raises:
        SpecError: no such file, not YAML, an unknown or missing key, a wrong type or a clash. It names each.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as exc:
        raise SpecError(f"cannot read the deployment file {path}: {exc.strerror}", file=path) from exc
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as exc:
        raise SpecError(f"{path} is not YAML: {' '.join(str(exc).split())}", file=path) from exc
    if not isinstance(data, dict):
        raise SpecError(
            f"{path} must hold keys and values, such as 'name: demo', but holds {type(data).__name__}", file=path
        )
    return validate(DeploymentSpec, data, source=path)


def validate(model: type[Model], data: object, *, source: Path) -> Model:
    """Check data read from `source` against a spec.

    Raises:
        SpecError: every finding by its path, one line.
    """
    try:
        return model.model_validate(data, context={"base_dir": source.parent})
    except ValidationError as exc:
        raise SpecError(f"{source}: {'; '.join(_finding(error) for error in exc.errors())}", file=source) from exc


def _finding(error: object) -> str:
    assert isinstance(error, dict)
    where = ".".join(str(part) for part in error["loc"])
    value = error.get("input")
    shown = f" (got {value!r})" if isinstance(value, str | int | float | bool) else ""
    message = error["msg"].removeprefix("Value error, ")
    return f"{where}: {message[:1].lower()}{message[1:]}{shown}" if where else f"{message}{shown}"


def override_triton(spec: DeploymentSpec, **changes: object) -> DeploymentSpec:
    """The deployment with other settings of its server, checked again; None leaves a setting as it is.

    Raises:
        SpecError: the result is not valid.
    """
    triton = spec.triton.model_dump() | {name: value for name, value in changes.items() if value is not None}
    return spec.model_copy(update={"triton": validate(TritonSpec, triton, source=Path("command line"))})
