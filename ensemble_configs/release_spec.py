# SPDX-License-Identifier: Apache-2.0
"""A release as it is served, as typed data: tokenizer, engine, who runs next, and how answers leave."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from ensemble_configs.admission_spec import AdmissionSpec, SloSpec
from ensemble_configs.engine_specs import EngineSpec
from ensemble_configs.spec import Integer, Number, Positive, Spec


class TokenizerSpec(Spec):
    """The tokenizer of both ends of the ensemble."""

    dir: Path = Field(description="folder with tokenizer.json")
    add_special_tokens: bool = Field(default=True, description="put the tokenizer's own tokens (BOS) around a prompt")
    skip_special_tokens: bool = Field(default=True, description="leave special tokens out of the text")


class ResponseSpec(Spec):
    """Defaults of requests that do not say."""

    exclude_input_in_output: bool = Field(
        default=False, description="upstream's default: a whole response has the prompt"
    )
    max_chunk_delay_ms: Number = Field(
        default=10.0,
        ge=0,
        description="how long tokens may wait to leave together; the first and the last of a stream never do",
    )
    target_chunks_per_s: Number = Field(
        default=0.0,
        ge=0,
        description="of all streams; n streams wait n / this, at most max_chunk_delay_ms; 0: always that long",
    )


class BlsSpec(Spec):
    """What `tensorrt_llm_bls` does in another way than `ensemble`."""

    accumulate_tokens: bool = Field(
        default=False, description="upstream's name: each response of a stream holds its whole text so far"
    )


_NotNegative = Annotated[Integer, Field(ge=0)]
_MigSlice = Annotated[str, Field(pattern=r"^(MIG|GPU)-[0-9A-Za-z/-]+$")]


class PlacementSpec(Spec):
    """Which part of a machine an engine's process may use; none: all of it."""

    gpus: tuple[_NotNegative | _MigSlice, ...] | None = Field(
        default=None, min_length=1, description="by number, or by UUID: GPU-..., MIG-... for a slice of one"
    )
    mps_thread_percentage: Integer | None = Field(
        default=None, ge=1, le=100, description="of a GPU's multiprocessors, where NVIDIA's MPS daemon runs"
    )
    cpus: tuple[_NotNegative, ...] | None = Field(default=None, min_length=1, description="cores by number")

    @model_validator(mode="after")
    def _each_once(self) -> "PlacementSpec":
        for name, values in (("gpus", self.gpus), ("cpus", self.cpus)):
            if values is not None and len(set(values)) < len(values):
                raise ValueError(f"{name} must differ, got {list(values)}")
        return self

    def environment(self) -> dict[str, str]:
        """What CUDA wants to be told when the process begins."""
        found = {}
        if self.gpus is not None:
            found["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, self.gpus))
        if self.mps_thread_percentage is not None:
            found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(self.mps_thread_percentage)
        return found


class ReleaseSpec(Spec):
    """What may differ between two releases that one server holds: `<version>/release.json` of the model repository.

    With `release_dir`, a built release (`ensemble_configs.release_manifest`), `engine.dir` and `tokenizer.dir` need not
    be named: they are its subfolders `engine` and `tokenizer`.
    """

    release: Positive
    release_dir: Path | None = Field(
        default=None, description="a built release: its manifest is checked at every start, and must be there"
    )
    release_public_key: Path | None = Field(
        default=None, description="PEM file with an Ed25519 key; the built release must be signed with it"
    )
    tokenizer: TokenizerSpec
    engine: EngineSpec
    draft_engine: EngineSpec | None = Field(
        default=None, description="drafts for requests with num_draft_tokens; for an engine that verifies drafts"
    )
    admission: AdmissionSpec | None = Field(
        default=None, description="who runs next and who is refused; none: the engine's own order, and all that come"
    )
    slo: SloSpec = SloSpec()
    responses: ResponseSpec = ResponseSpec()
    bls: BlsSpec = BlsSpec()
    placement: PlacementSpec = PlacementSpec()

    @model_validator(mode="before")
    @classmethod
    def _take_folders_of_release(cls, data: object) -> object:
        if not isinstance(data, dict) or not isinstance(data.get("release_dir"), str | Path):
            return data
        folders = {
            part: {"dir": Path(data["release_dir"]) / part} | (data.get(part) or {})
            for part in ("engine", "tokenizer")
            if isinstance(data.get(part), dict | None)
        }
        return data | folders

    @model_validator(mode="after")
    def _engine_is_of_release(self) -> "ReleaseSpec":
        if self.release_dir is not None and getattr(self.engine, "dir", None) != self.release_dir / "engine":
            raise ValueError("engine.dir must be the folder engine of release_dir; leave it out")
        return self

    @model_validator(mode="after")
    def _engine_has_its_gpus(self) -> "ReleaseSpec":
        world_size = getattr(self.engine, "world_size", 1)
        num_here = min(world_size, getattr(self.engine, "gpus_per_node", None) or world_size)
        if self.placement.gpus is not None and len(self.placement.gpus) < num_here:
            raise ValueError(
                f"placement.gpus names {len(self.placement.gpus)} GPUs, but the engine has {num_here} ranks on a node; "
                "name as many, or set engine.gpus_per_node"
            )
        return self
