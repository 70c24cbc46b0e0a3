# SPDX-License-Identifier: Apache-2.0
"""A release as it is served, as typed data: tokenizer, engine, admission, and how answers leave."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from ensemble_configs.spec.admission_spec import AdmissionSpec, SloSpec
from ensemble_configs.spec.base import Boolean, Integer, Name, NotNegative, Number, Positive, Spec
from ensemble_configs.spec.engine.engine_spec import EngineSpec
from ensemble_configs.spec.engine.kv_events_spec import NO_EVENTS, KvEventsSpec
from ensemble_configs.spec.engine.prefill_servers_spec import PrefillServersSpec


class TokenizerSpec(Spec):
    """The tokenizer of both ends of the ensemble."""

    dir: Path = Field(description="folder with tokenizer.json")
    add_special_tokens: Boolean = Field(
        default=True, description="put the tokenizer's own tokens (BOS) around a prompt"
    )
    skip_special_tokens: Boolean = Field(default=True, description="leave special tokens out of the text")


class ResponseSpec(Spec):
    """Settings of responses for requests that do not give their own."""

    exclude_input_in_output: Boolean = Field(
        default=False, description="upstream's default: a whole response has the prompt"
    )
    max_chunk_delay_ms: Number = Field(
        default=10.0,
        ge=0,
        le=60_000,
        description="how long tokens may wait to leave together; the first and the last of a stream never do",
    )
    target_chunks_per_s: Number = Field(
        default=0.0,
        ge=0,
        le=1e9,
        description="of all streams; n streams wait n / this, at most max_chunk_delay_ms; 0: always that long",
    )


class BlsSpec(Spec):
    """Differences between `tensorrt_llm_bls` and `ensemble`."""

    accumulate_tokens: Boolean = Field(
        default=False, description="upstream's name: each response of a stream holds its whole text so far"
    )


_MigSlice = Annotated[str, Field(pattern=r"^(MIG|GPU)-[0-9A-Za-z/-]+$")]


class PlacementSpec(Spec):
    """The part of a machine that an engine's process may use; none: the whole machine."""

    gpus: tuple[NotNegative | _MigSlice, ...] | None = Field(
        default=None, min_length=1, description="by number, or by UUID: GPU-..., MIG-... for a slice of one"
    )
    mps_thread_percentage: Integer | None = Field(
        default=None, ge=1, le=100, description="of a GPU's multiprocessors, where NVIDIA's MPS daemon runs"
    )
    cpus: tuple[NotNegative, ...] | None = Field(default=None, min_length=1, description="cores by number")

    @model_validator(mode="after")
    def _each_once(self) -> "PlacementSpec":
        for name, values in (("gpus", self.gpus), ("cpus", self.cpus)):
            if values is not None and len(set(values)) < len(values):
                raise ValueError(f"{name} must differ, got {list(values)}")
        return self

    def environment(self) -> dict[str, str]:
        """Return the environment variables that CUDA reads when the process begins."""
        found = {}
        if self.gpus is not None:
            found["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, self.gpus))
        if self.mps_thread_percentage is not None:
            found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(self.mps_thread_percentage)
        return found


class OnDemandSpec(Spec):
    """On-demand loading: an engine is loaded when a request asks for it, and gives way to another (time-slicing).

    The engines of a pool share its memory; which of them are loaded changes as they are asked for.
    """

    pool: Name = Field(default="memory", description="engines with the same pool share it; all say the same pool_mib")
    pool_mib: Positive = Field(description="memory of a device that the pool's loaded engines may take together")
    memory_mib: Positive = Field(description="that this engine takes while it is loaded; `trireme plan` tells it")
    min_resident_s: Number = Field(
        default=10.0,
        ge=0,
        le=86_400,
        description="once loaded it stays so long: bounds how often two change places",
    )
    max_wait_s: Number = Field(
        default=60.0,
        gt=0,
        le=86_400,
        description="a request waits so long for its engine to come, then is refused",
    )
    max_slice_s: Number = Field(
        default=30.0,
        ge=0,
        le=86_400,
        description="while others want its memory it takes new requests so long, then ends those it has and gives way",
    )

    @model_validator(mode="after")
    def _fits_its_pool(self) -> "OnDemandSpec":
        if self.memory_mib > self.pool_mib:
            raise ValueError(f"memory_mib ({self.memory_mib}) is more than pool_mib ({self.pool_mib}); raise that")
        if self.max_slice_s < self.min_resident_s:
            raise ValueError(
                f"max_slice_s ({self.max_slice_s:g}) is less than min_resident_s ({self.min_resident_s:g}); raise it"
            )
        return self


class ReleaseSpec(Spec):
    """The fields that may differ between two releases of one server: `<version>/release.json` of the model repository.

    With `release_dir`, a built release (`ensemble_configs.releases.release_manifest`), `engine.dir` and `tokenizer.dir`
    need not be named: they are its subfolders `engine` and `tokenizer`.
    """

    release: Positive = Field(description="number of the release, a version in Triton")
    release_dir: Path | None = Field(
        default=None, description="a built release: its manifest is checked at every start, and must be there"
    )
    release_public_key: Path | None = Field(
        default=None, description="PEM file with an Ed25519 key; the built release must be signed with it"
    )
    tokenizer: TokenizerSpec
    engine: EngineSpec
    admission: AdmissionSpec | None = Field(
        default=None, description="which request runs next or is refused; none: the engine's order, none is refused"
    )
    slo: SloSpec = SloSpec()
    responses: ResponseSpec = ResponseSpec()
    bls: BlsSpec = BlsSpec()
    placement: PlacementSpec = PlacementSpec()
    is_warmed_up: Boolean = Field(
        default=True,
        description="before it is ready it does a request of its own, which nothing counts",
    )
    on_demand: OnDemandSpec | None = Field(default=None, description="none: the engine is loaded all the time")
    kv_events: KvEventsSpec | None = Field(
        default=None, description="tell routers which KV blocks the engine holds; none: nobody is told"
    )
    prefill_servers: PrefillServersSpec | None = Field(
        default=None, description="other servers that compute long prompts for this one; none: all are computed here"
    )

    @model_validator(mode="before")
    @classmethod
    def _take_folders_of_release(cls, data: object) -> object:
        if not isinstance(data, dict) or not isinstance(data.get("release_dir"), str | Path):
            return data
        folders = {
            part: {"dir": Path(data["release_dir"]) / part} | (data.get(part) or {})
            for part in ("engine", "tokenizer")
            if isinstance(data.get(part), dict | None) and (data.get(part) or {}).get("provider") != "simulated"
        }
        return data | folders

    @model_validator(mode="after")
    def _engine_is_of_release(self) -> "ReleaseSpec":
        if self.release_dir is not None and self.engine.provider == "simulated":
            raise ValueError("release_dir: an engine of the provider simulated is not built; leave release_dir out")
        if self.release_dir is not None and getattr(self.engine, "dir", None) != self.release_dir / "engine":
            raise ValueError("engine.dir must be the folder engine of release_dir; leave it out")
        return self

    @model_validator(mode="after")
    def _engine_tells_events(self) -> "ReleaseSpec":
        if self.kv_events is None:
            return self
        if (why := NO_EVENTS.get(self.engine.provider)) is not None:
            raise ValueError(f"kv_events: {why}; leave it out, or serve with provider vllm, pytorch or tensorrt")
        if self.engine.provider != "simulated" and not getattr(self.engine, "is_block_reuse", True):
            raise ValueError("kv_events tell of blocks for reuse, and engine.is_block_reuse is false; leave one out")
        return self

    @model_validator(mode="after")
    def _engine_takes_what_others_computed(self) -> "ReleaseSpec":
        if self.prefill_servers is None:
            return self
        if not any(getattr(self.engine, name, None) for name in ("kv_transfer", "cache_transceiver")):
            raise ValueError(
                f"prefill_servers needs an engine that takes KV cache of others, and this one of provider "
                f"{self.engine.provider} does not: name engine.kv_transfer (provider vllm) or engine.cache_transceiver "
                "(providers tensorrt and pytorch), or leave prefill_servers out"
            )
        if getattr(getattr(self.engine, "kv_transfer", None), "role", None) == "prefill":
            raise ValueError(
                "prefill_servers is for the server that goes on with their prompts, and engine.kv_transfer.role is "
                "prefill; set decode or both, or leave prefill_servers out"
            )
        return self

    @property
    def num_gpus(self) -> int:
        """Return the number of GPUs of the engine on one node; 0 on the CPU."""
        world_size = 0 if getattr(self.engine, "device", "gpu") == "cpu" else int(getattr(self.engine, "world_size", 0))
        return min(world_size, getattr(self.engine, "gpus_per_node", None) or world_size)

    @property
    def gpus(self) -> tuple[int | str, ...]:
        """Return the GPUs that the engine's ranks take on a node, the first of those that it sees."""
        return (self.placement.gpus or tuple(range(self.num_gpus)))[: self.num_gpus]

    @model_validator(mode="after")
    def _engine_has_its_gpus(self) -> "ReleaseSpec":
        if not self.num_gpus and (self.placement.gpus or self.placement.mps_thread_percentage):
            raise ValueError(
                "placement.gpus and mps_thread_percentage are for engines on GPUs, and provider "
                f"{self.engine.provider} is on the CPU; name placement.cpus, or leave them out"
            )
        if self.placement.gpus is not None and len(self.placement.gpus) < self.num_gpus:
            raise ValueError(
                f"placement.gpus names {len(self.placement.gpus)} GPUs, but the engine has {self.num_gpus} ranks on a "
                "node; name as many, or set engine.gpus_per_node"
            )
        return self
