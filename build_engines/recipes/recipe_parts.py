# SPDX-License-Identifier: Apache-2.0
"""Parts of a recipe (`build_engines.recipes.recipe`): calibration, plugins, speculation, adapters and quality."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ensemble_configs.releases.release_parts import Sha256
from ensemble_configs.spec.base import Integer, Number, Positive, Spec
from ensemble_configs.spec.engine.speculation_specs import lookahead_drafts

Fraction = Annotated[Number, Field(ge=0, le=1)]
PluginDtype = Literal["auto", "float16", "float32", "bfloat16", "int32", "disable"]
LoraModule = Literal[
    "attn_qkv", "attn_q", "attn_k", "attn_v", "attn_dense", "mlp_h_to_4h", "mlp_4h_to_h", "mlp_gate",
    "moe_h_to_4h", "moe_4h_to_h", "moe_gate", "moe_router", "mlp_router", "mlp_gate_up",
]  # fmt: skip


class Calibration(Spec):
    """The text that a quantizer watches activations on."""

    dataset: str | None = Field(default=None, description="a name that the quantizer knows, which it then fetches")
    file: Path | None = Field(
        default=None, description="or a file of ours: .jsonl with the key `text`, or .txt, a sample a line"
    )
    sha256: Sha256 | None = Field(default=None, description="hash of the file")
    num_samples: Positive = 512
    max_tokens: Positive = Field(default=512, description="tokens of a sample; longer samples are cut")
    batch_size: Positive = Field(default=1, description="samples at once: faster, and more memory")
    seed: Integer = 1234

    @model_validator(mode="after")
    def _comes_from_one_place(self) -> "Calibration":
        if (self.dataset is None) == (self.file is None):
            raise ValueError("dataset or file must be set, and not both")
        if (self.file is None) != (self.sha256 is None):
            raise ValueError("file and sha256 go together: `sha256sum FILE` prints it")
        return self


class Plugins(Spec):
    """Flags of trtllm-build by their own names; all are passed, so that an upstream default changes nothing."""

    gemm_plugin: Literal["auto", "float16", "float32", "bfloat16", "int32", "fp8", "nvfp4", "disable"] = "disable"
    gpt_attention_plugin: PluginDtype = "auto"
    nccl_plugin: PluginDtype = "auto"
    moe_plugin: PluginDtype = "auto"
    fp8_rowwise_gemm_plugin: PluginDtype = "disable"
    gemm_swiglu_plugin: Literal["fp8", "disable"] = "disable"
    low_latency_gemm_plugin: Literal["fp8", "disable"] = "disable"
    low_latency_gemm_swiglu_plugin: Literal["fp8", "disable"] = "disable"
    gemm_allreduce_plugin: Literal["float16", "bfloat16", "disable"] = "disable"
    context_fmha: bool = Field(default=True, description="fused attention over prompts")
    use_paged_context_fmha: bool = Field(
        default=True, description="needed for block reuse and chunked prefill of the KV cache"
    )
    use_fp8_context_fmha: bool = Field(default=True, description="FP8 attention over prompts, where the rest is FP8")
    fuse_fp4_quant: bool = False
    remove_input_padding: bool = Field(default=True, description="needed for in-flight batching")
    multiple_profiles: bool = Field(default=False, description="several optimization profiles: faster, a longer build")
    norm_quant_fusion: bool = False
    reduce_fusion: bool = Field(default=False, description="fuse the all-reduce with the norm behind it")
    user_buffer: bool = Field(default=False, description="all-reduce without a copy; FP8 Llama, with reduce_fusion")
    use_fused_mlp: bool = True
    pp_reduce_scatter: bool = Field(default=False, description="Mixtral with pipeline parallel only")


class SmoothQuantSpec(Spec):
    """INT8 weights and activations."""

    alpha: Fraction = Field(default=0.5, description="how much of the outliers goes from activations to weights")
    is_per_channel: bool = Field(default=True, description="a weight scale for each output channel, not one in all")
    is_per_token: bool = Field(default=True, description="an activation scale for each token, not one in all")


class MedusaRecipe(Spec):
    """Medusa heads, put into the engine."""

    method: Literal["medusa"]
    dir: Path = Field(description="folder of the heads")
    num_heads: Positive = 4
    num_layers: Positive = Field(default=1, description="layers of a head")
    max_draft_len: Positive = Field(default=63, description="nodes of the draft tree but the root")
    hidden_act: str = "silu"
    is_head_quantized: bool = False


class LookaheadRecipe(Spec):
    """Lookahead decoding; requests may use smaller sizes than these."""

    method: Literal["lookahead"]
    window_size: Positive
    ngram_size: Positive
    verification_set_size: Positive

    @property
    def max_draft_len(self) -> int:
        """Return the tokens that one step may verify, the real one left out."""
        return lookahead_drafts(self.window_size, self.ngram_size, self.verification_set_size)


class ExternalDraftRecipe(Spec):
    """An engine that verifies what another engine drafts."""

    method: Literal["draft_tokens_external"]
    max_draft_len: Positive


class EagleRecipe(Spec):
    """An EAGLE-1 or -2 recipe: from a checkpoint that upstream's script has joined with the EAGLE network already."""

    method: Literal["eagle"]
    max_draft_len: Positive


class ExplicitDraftRecipe(Spec):
    """A ReDrafter recipe: from a checkpoint that upstream's script has joined with the drafter already."""

    method: Literal["explicit_draft_tokens"]
    max_draft_len: Positive


class NGramRecipe(Spec):
    """Drafts looked up in the text so far; a setting of the launch."""

    method: Literal["ngram"]
    max_draft_len: Positive
    max_matching_ngram_size: Positive = 2


class MtpRecipe(Spec):
    """The model's own layers for the tokens after the next (DeepSeek); a setting of the launch."""

    method: Literal["mtp"]
    num_nextn_predict_layers: Positive = 1


class Eagle3Recipe(Spec):
    """EAGLE-3 with a draft checkpoint, which becomes part of the release."""

    method: Literal["eagle3"]
    dir: Path
    max_draft_len: Positive


class DraftTargetRecipe(Spec):
    """A smaller model of the same tokenizer, which becomes part of the release."""

    method: Literal["draft_target"]
    dir: Path
    max_draft_len: Positive


Speculation = Annotated[
    MedusaRecipe
    | LookaheadRecipe
    | ExternalDraftRecipe
    | EagleRecipe
    | ExplicitDraftRecipe
    | NGramRecipe
    | MtpRecipe
    | Eagle3Recipe
    | DraftTargetRecipe,
    Field(discriminator="method"),
]


class LoraRecipe(Spec):
    """Room for low-rank adapters, which are given with the deployment."""

    target_modules: tuple[LoraModule, ...] = Field(min_length=1)
    max_rank: Positive = 64
    plugin: PluginDtype = "auto"


class BuilderSpec(Spec):
    """Settings for the machine that builds; none of them changes the release."""

    num_workers: Positive | None = Field(default=None, description="ranks at once; none: what GPUs and memory allow")
    calibration_device_map: Literal["auto", "sequential", "cpu", "gpu"] = Field(
        default="auto", description="how a model that is calibrated is laid over the GPUs"
    )
    log_level: Literal["internal_error", "error", "warning", "info", "verbose", "debug"] = "info"


class QualitySpec(Spec):
    """The quality that a release must reach against its base before it is promoted; the worst group counts."""

    perplexity_ratio_max: Annotated[Number, Field(gt=0)] | None = Field(default=None, description="release over base")
    agreement_min: Fraction | None = Field(default=None, description="share of greedy tokens that are the base's")
    kl_max: Annotated[Number, Field(ge=0)] | None = Field(default=None, description="mean over positions, nats")
    accuracy_drop_max: Fraction | None = Field(default=None, description="loss of exact matches in the tasks")


class DraftModelSpec(Spec):
    """A smaller model that goes into the release and drafts for the larger one."""

    dir: Path = Field(description="folder of the checkpoint")
    format: Literal["fp16", "int8", "int4"] = "int8"
