# SPDX-License-Identifier: Apache-2.0
"""Parts of a built release's manifest (`ensemble_configs.releases.release_manifest`), and of its provenance."""

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, Field, JsonValue

from ensemble_configs.spec.base import Integer, Number, Positive, PositiveSize, Spec


def _safe(path: str) -> str:
    """Return a path that stays inside the release and takes one line; for pydantic."""
    parts = PurePosixPath(path).parts
    if not parts or path != "/".join(parts) or ".." in parts or path.startswith("/") or not path.isprintable():
        raise ValueError(f"{path!r} is not a plain relative path")
    return path


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
ReleasePath = Annotated[str, AfterValidator(_safe)]
PackageName = Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
Bytes = Annotated[Integer, Field(ge=0)]


class ModelIdentity(Spec):
    """The identity of the model in a release."""

    architecture: str = Field(description="as the checkpoint's config.json calls it: LlamaForCausalLM")
    num_parameters: PositiveSize
    source: str = Field(description="where the checkpoint came from, for people: a repository and its revision")


class ReleaseLimits(Spec):
    """The limits that the engine was built for; a deployment may ask for less."""

    max_batch_size: Positive | None = Field(default=None, description="requests in one step; none: no limit")
    max_num_tokens: Positive | None = Field(default=None, description="tokens in one step; none: no limit")
    max_seq_len: Positive = Field(description="prompt and output together, tokens")
    max_beam_width: Positive = 1


class EngineDifference(Spec):
    """A setting that the engine's compiler changed without harm to what the engine is for."""

    setting: str = Field(description="as the engine's config.json has it: plugin_config.use_fp8_context_fmha")
    asked: str
    built: str


class StepCosts(Spec):
    """Bytes that a step reads and operations that it computes, and the GPUs' datasheet peaks; of all ranks together.

    None: it is not known, or depends on more: with experts, the weights read depend on which ones the tokens meet.
    """

    weight_bytes: PositiveSize | None = Field(
        default=None, description="that a decode step reads: no embedding table, unless it is the head's, too"
    )
    kv_bytes_per_token: PositiveSize | None = None
    flops_per_token: PositiveSize | None = Field(default=None, description="2 for each parameter that a token meets")
    peak_bandwidth_bytes_per_s: PositiveSize | None = None
    peak_flops: PositiveSize | None = Field(default=None, description="dense, of what the weights are multiplied in")


class DraftModel(Spec):
    """A smaller model in the release that drafts for the larger one."""

    dir: ReleasePath = "draft"
    model: ModelIdentity
    weights_sha256: Sha256
    weight_bytes_per_rank: PositiveSize
    kv_bytes_per_token: PositiveSize


class EvaluationResult(Spec):
    """A figure of the quality gate."""

    task: str
    group: str = Field(default="all", description="a language, a length: what the figure is of")
    metric: str
    value: Number
    interval: tuple[Number, Number] | None = Field(default=None, description="confidence interval")
    baseline: Number | None = Field(default=None, description="the same of the release it is compared with")
    passed: bool | None = Field(default=None, description="none: no threshold in the recipe")


class EvaluationBase(Spec):
    """The model or release that a release was evaluated against."""

    name: str
    address: Sha256 | None = Field(default=None, description="of the base; none: it was no release")
    tasks_sha256: Sha256 = Field(description="of the file with what was asked")
    computed_in: str | None = Field(default=None, description="number format of the multiplications, f32 or bf16")


class Override(Spec):
    """The name and reason of a person who promotes a release that the quality gate refused."""

    reason: Annotated[str, Field(min_length=1)]
    who: Annotated[str, Field(min_length=1)]


class ReleaseFile(Spec):
    """A file of the content: its size and its hash."""

    sha256: Sha256
    size: Bytes


class Provenance(Spec):
    """The content of `RELEASE/provenance.json`, which differs between two builds of the same release."""

    built_by: str
    built_at: str = Field(description="ISO 8601, with time zone")
    host: str
    duration_s: Annotated[Number, Field(ge=0)]
    details: dict[str, JsonValue] = Field(default={})
