# SPDX-License-Identifier: Apache-2.0
"""A recipe: how a checkpoint becomes a release, as typed data; `recipes/*.yaml` come with us.

Checks against hardware and versions are in `build_engines.recipes.recipe_checks`, the commands in
`build_engines.tensorrt_llm.trtllm_commands`.
"""

import re
from pathlib import Path
from stat import S_ISREG
from typing import Annotated, Literal, get_args

import yaml
from pydantic import AfterValidator, BaseModel, Field, JsonValue, model_validator

from build_engines.checkpoint.gpus import gpus
from build_engines.recipes.extra_build_args import ExtraBuildArgs, check_extra_build_args
from build_engines.recipes.recipe_parts import (
    BuilderSpec,
    Calibration,
    DraftModelSpec,
    Fraction,
    LoraRecipe,
    Plugins,
    QualitySpec,
    SmoothQuantSpec,
    Speculation,
)
from build_engines.sharding.parallel_sizes import EmbeddingSharding
from ensemble_configs.releases.release_manifest import hash_recipe as hash_document
from ensemble_configs.spec.base import Positive, Spec
from ensemble_configs.spec.batch_limits import UPSTREAM_SEQS, UPSTREAM_TOKENS, step_limits
from ensemble_configs.spec.validation import validate
from trireme.base.errors import SpecError

RECIPES = Path(__file__).parent

GpuFormat = Literal[
    "fp16", "bf16", "int8_weight_only", "smoothquant", "int4_weight_only", "int4_awq", "int4_gptq", "fp8",
    "fp8_rowwise", "fp8_block", "w4a8_awq", "nvfp4",
]  # fmt: skip
Dtype = Literal["auto", "float16", "bfloat16", "float32"]

_MAX_BYTES = 1 << 20  # the longest of ours have some hundred
_MAX_NAME_LEN = 100  # with the address behind it, a file system's limit of 255 bytes is far


def _named(name: str) -> str:
    if len(name) > _MAX_NAME_LEN or not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
        raise ValueError(
            f"must be 1 to {_MAX_NAME_LEN} characters, small letters, digits, dots, hyphens and underscores, the first "
            f"a letter or digit, for it names the release's folder; it has {len(name)}"
        )
    return name


class _Recipe(Spec):
    """The fields that every back end needs."""

    name: Annotated[str, AfterValidator(_named), Field(description="name of the recipe and of the release's folder")]
    model: str = Field(description="where the checkpoint comes from, for people: a repository and its revision")
    max_batch_size: Positive = Field(default=64, description="requests in one step")
    max_num_tokens: Positive = Field(default=8192, description="tokens in one step")
    max_seq_len: Positive = Field(default=8192, description="prompt and output together, tokens")
    calibration: Calibration | None = None
    quality: QualitySpec = QualitySpec()


class _GpuRecipe(_Recipe):
    """The fields that both back ends of TensorRT-LLM need."""

    max_batch_size: Positive = Field(
        default=UPSTREAM_SEQS, description="requests in one step; default by the GPU's memory, 2048 from 70 GiB on"
    )
    max_num_tokens: Positive = Field(
        default=UPSTREAM_TOKENS, description="tokens in one step; default by the GPU's memory, 8192 from 70 GiB on"
    )
    gpu: str = Field(description="GPU that will serve the release: a name of gpus.yaml")
    tensorrt_llm: str = Field(default="1.2.1", description="the version that builds and serves it")
    format: GpuFormat = Field(
        description="format of the matrices in the layers; embedding, head and norms keep 16 bits"
    )
    is_head_quantized: bool = Field(default=False, description="quantize the head, too")
    kv_format: Literal["auto", "fp16", "int8", "fp8", "nvfp4"] = Field(
        default="auto", description="format of the KV cache; auto: 16 bits"
    )
    dtype: Dtype = Field(default="auto", description="type of what is not quantized; auto: the checkpoint's")
    group_size: Positive = Field(default=128, description="weights that share a scale, for AWQ and GPTQ")
    tp_size: Positive = Field(default=1, description="ranks of tensor parallelism")
    pp_size: Positive = Field(default=1, description="stages of pipeline parallelism")
    cp_size: Positive = Field(default=1, description="ranks of context parallelism")
    ep_size: Positive = Field(default=1, description="ranks of expert parallelism, within tp_size")
    speculation: Speculation | None = None
    lora: LoraRecipe | None = None
    builder: BuilderSpec = BuilderSpec()

    @model_validator(mode="before")
    @classmethod
    def _sizes_of_the_gpu(cls, data: object) -> object:
        gpu = gpus().get(str(data.get("gpu")).lower()) if isinstance(data, dict) else None
        if gpu is None or not isinstance(data, dict):
            return data
        limits = step_limits(gpu.memory_gib)
        return {"max_batch_size": limits.num_seqs, "max_num_tokens": limits.num_tokens, **data}

    @property
    def world_size(self) -> int:
        """Return the number of GPUs of one engine."""
        return self.tp_size * self.pp_size * self.cp_size


class TensorRtRecipe(_GpuRecipe):
    """A recipe for a compiled engine: quantize or convert, then trtllm-build."""

    backend: Literal["tensorrt"]
    max_input_len: Positive = Field(default=4096, description="tokens of a prompt")
    max_beam_width: Positive = 1
    opt_num_tokens: Positive | None = Field(default=None, description="tokens in the step it is tuned for")
    checkpoint_form: Literal["hugging_face", "tensorrt_llm"] = Field(
        default="hugging_face",
        description="tensorrt_llm: config.json and rank0.safetensors, as upstream's scripts write",
    )
    gptq_file: Path | None = Field(
        default=None, description="GPTQ weights beside a plain checkpoint; none: the checkpoint is GPTQ itself"
    )
    smoothquant: SmoothQuantSpec | None = Field(
        default=None, description="for format smoothquant of the Llama family; none: its defaults"
    )
    kv_cache_type: Literal["paged", "continuous", "disabled"] = "paged"
    kv_block_tokens: Positive = Field(default=32, description="tokens of a block of the KV cache")
    is_gathering_context_logits: bool = False
    is_gathering_generation_logits: bool = False
    logits_dtype: Literal["float16", "float32"] = "float32"
    embedding: EmbeddingSharding = Field(
        default="none", description="side along which the embedding is split over the ranks of tensor parallelism"
    )
    is_weight_streaming: bool = Field(default=False, description="weights may stay in host memory")
    plugins: Plugins = Plugins()
    extra_build_args: ExtraBuildArgs = Field(
        default={},
        description="flags of trtllm-build that have no field here, passed on as they are; true: the flag alone",
    )

    @model_validator(mode="after")
    def _extra_flags_are_upstreams(self) -> "TensorRtRecipe":
        check_extra_build_args(self.extra_build_args, version=self.tensorrt_llm)
        return self

    @model_validator(mode="after")
    def _lengths_fit(self) -> "TensorRtRecipe":
        if self.max_input_len >= self.max_seq_len:
            raise ValueError(
                f"max_input_len ({self.max_input_len}) must be less than max_seq_len ({self.max_seq_len}), which "
                "counts the output, too"
            )
        if self.opt_num_tokens is not None and self.opt_num_tokens > self.max_num_tokens:
            raise ValueError(f"opt_num_tokens ({self.opt_num_tokens}) > max_num_tokens ({self.max_num_tokens})")
        return self


class PyTorchRecipe(_GpuRecipe):
    """A recipe for a checkpoint of TensorRT-LLM's PyTorch backend: quantized by ModelOpt, or used unchanged."""

    backend: Literal["pytorch"]
    is_attention_dp: bool = Field(default=False, description="attention by data parallel ranks, not tensor parallel")
    kv_block_tokens: Positive = 32
    max_beam_width: Positive = 1


class OpenVinoRecipe(_Recipe):
    """A recipe for OpenVINO's IR, for the CPU."""

    backend: Literal["openvino"]
    format: Literal["fp16", "int8", "int4"] = Field(description="format of the matrices in the layers")
    embedding_format: Literal["auto", "fp16", "int8", "int4"] = Field(
        default="auto", description="auto: the exporter's"
    )
    head_format: Literal["auto", "fp16", "int8", "int4"] = Field(default="auto", description="auto: the exporter's")
    kv_format: Literal["auto", "fp16", "int8"] = Field(default="auto", description="auto: the device's own")
    is_symmetric: bool = Field(default=False, description="no zero points")
    group_size: Positive | None = Field(default=None, description="weights that share a scale; none: a whole row")
    ratio: Fraction = Field(default=1.0, description="share of the layers that get int4; the others get int8")
    is_awq: bool = Field(default=False, description="scale channels by what meets them; needs calibration")
    is_data_aware: bool = Field(default=False, description="estimate scales from activations; needs calibration")
    draft: DraftModelSpec | None = None

    @model_validator(mode="after")
    def _parts_fit(self) -> "OpenVinoRecipe":
        is_int4 = self.format == "int4"
        for name in ("group_size", "is_awq", "is_data_aware"):
            if getattr(self, name) and not is_int4:
                raise ValueError(f"{name} is for format int4; leave it out or take that format")
        if self.ratio != 1 and not is_int4:
            raise ValueError("ratio is for format int4; leave it out or take that format")
        if (self.is_awq or self.is_data_aware) and self.calibration is None:
            raise ValueError("is_awq and is_data_aware need calibration; name a dataset or a file")
        return self


class VllmRecipe(_Recipe):
    """A recipe for a checkpoint that vLLM loads: quantized by llm-compressor, or used unchanged."""

    backend: Literal["vllm"]
    format: Literal["fp16", "bf16", "smoothquant", "int4_awq", "int4_gptq", "fp8_rowwise", "fp8_block"] = Field(
        description="format of the matrices in the layers; embedding, head and norms keep 16 bits"
    )
    group_size: Literal[32, 64, 128] | None = Field(
        default=None, description="weights that share a scale, for AWQ and GPTQ; none: 128"
    )
    is_symmetric: bool = Field(default=True, description="no zero points, for AWQ and GPTQ")
    smoothquant: SmoothQuantSpec | None = Field(default=None, description="for format smoothquant; none: its defaults")
    is_gptq: bool = Field(default=False, description="round the weights of format smoothquant by GPTQ, too")
    ignored_layers: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="linear layers that keep 16 bits: a name such as model.layers.0.mlp.down_proj, or a regular "
        "expression behind `re:`; head and routers always do",
    )

    @property
    def weights_per_scale(self) -> int:
        """Return how many weights of a row share a scale, for AWQ and GPTQ."""
        return self.group_size or 128

    @property
    def is_calibrated(self) -> bool:
        """Return True if the format is found by running the model on text."""
        return self.format in ("smoothquant", "int4_awq", "int4_gptq")

    @model_validator(mode="after")
    def _parts_fit(self) -> "VllmRecipe":
        is_int4 = self.format in ("int4_awq", "int4_gptq")
        if not is_int4 and (self.group_size is not None or not self.is_symmetric):
            raise ValueError("group_size and is_symmetric are for formats int4_awq and int4_gptq; leave them out")
        if self.format != "smoothquant" and (self.smoothquant is not None or self.is_gptq):
            raise ValueError("smoothquant and is_gptq are for format smoothquant; leave them out or take that format")
        if self.smoothquant is not None and not (self.smoothquant.is_per_channel and self.smoothquant.is_per_token):
            raise ValueError(
                "smoothquant.is_per_channel and is_per_token must be true: a weight scale for each channel and an "
                "activation scale for each token are what this back end makes; leave them out"
            )
        if self.is_calibrated and self.calibration is None:
            raise ValueError(f"format {self.format} needs calibration; name a file")
        if not self.is_calibrated and self.calibration is not None:
            raise ValueError(f"calibration: format {self.format} is not calibrated; leave it out")
        if self.format in ("fp16", "bf16") and self.ignored_layers:
            raise ValueError(f"ignored_layers: format {self.format} keeps 16 bits everywhere; leave it out")
        for pattern in self.ignored_layers:
            try:
                re.compile(pattern.removeprefix("re:"))
            except re.error as exc:
                raise ValueError(f"ignored_layers: {pattern} is no regular expression: {exc}") from exc
        return self


Recipe = TensorRtRecipe | PyTorchRecipe | OpenVinoRecipe | VllmRecipe
GpuRecipe = TensorRtRecipe | PyTorchRecipe

_BACKENDS: dict[object, type[Recipe]] = {
    get_args(recipe.model_fields["backend"].annotation)[0]: recipe for recipe in get_args(Recipe)
}


def recipe_names() -> list[str]:
    """Return the names of the recipes that come with us."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def load_recipe(file_or_name: str | Path) -> Recipe:
    """Read a recipe file, or one of ours by name; relative paths in it become absolute, from the file's own folder.

    Raises:
        SpecError: no such file, not YAML, an unknown or missing key, a wrong type or a clash. It names each.
    """
    path = Path(file_or_name)
    if str(file_or_name) in recipe_names():
        path = RECIPES / f"{file_or_name}.yaml"
    try:
        data = yaml.safe_load(_read(path))
    except OSError as exc:
        raise SpecError(
            f"cannot read the recipe {path}: {exc.strerror}; name a file, or one of {', '.join(recipe_names())}",
            file=path,
        ) from exc
    except UnicodeDecodeError as exc:
        raise SpecError(f"the recipe {path} is not text in UTF-8; name a YAML file", file=path) from exc
    except yaml.YAMLError as exc:
        raise SpecError(f"{path} is not YAML: {' '.join(str(exc).split())}", file=path) from exc
    if not isinstance(data, dict):
        raise SpecError(f"{path} must hold keys and values, such as 'backend: tensorrt'", file=path)
    recipe = _BACKENDS.get(data.get("backend"))
    if recipe is None:
        raise SpecError(
            f"{path}: backend must be one of {', '.join(map(str, _BACKENDS))}; got {data.get('backend')!r}",
            file=path,
            field="backend",
        )
    return validate(recipe, data, source=path)


def _read(path: Path) -> str:
    """Return the text of a recipe file.

    Raises:
        SpecError: a pipe or a device, which may never end, or far too large for a recipe.
    """
    stat = path.stat()
    if not S_ISREG(stat.st_mode):
        raise SpecError(f"the recipe {path} is not a plain file; name a YAML file", file=path)
    if stat.st_size > _MAX_BYTES:
        raise SpecError(
            f"the recipe {path} has {stat.st_size:,} bytes, and a recipe at most {_MAX_BYTES:,}; name a YAML file",
            file=path,
        )
    return path.read_text(encoding="utf-8")


def recipe_document(recipe: Recipe) -> dict[str, JsonValue]:
    """Return the recipe as it goes into a manifest.

    It has every field that can change the release, and of paths the last name, so that machines agree.
    """
    document: dict[str, JsonValue] = _portable(recipe).model_dump(mode="json", exclude={"builder"})
    if not document.get("extra_build_args", True):
        del document["extra_build_args"]  # so that a recipe without any has the hash that it had before there were some
    return document


def hash_recipe(recipe: Recipe) -> str:
    """Return the SHA-256 of the recipe, 64 hexadecimal digits; where files lie on this machine does not count."""
    return hash_document(recipe_document(recipe))


def _portable(spec: BaseModel) -> BaseModel:
    changes: dict[str, object] = {}
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        if isinstance(value, Path):
            changes[name] = Path(value.name)
        elif isinstance(value, BaseModel):
            changes[name] = _portable(value)
    return spec.model_copy(update=changes)
