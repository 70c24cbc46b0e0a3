# SPDX-License-Identifier: Apache-2.0
"""The memory plan of a deployment: its models on the devices that they share, their KV caches, and room for an update.

The plan says whether a second version of each model would fit beside all models while it is rolled out. A device is the
host's memory, for engines on the CPU, or one GPU. Engines that are loaded in turns take their pool.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from build_engines.planner.engine_memory import EngineMemory, memory_of
from ensemble_configs.releases.engine_fit import whole_sequence_of
from ensemble_configs.releases.kv_capacity import WholeSequence
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.engine.engine_spec import EngineSpec
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec, TensorRtEngineSpec
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from ensemble_configs.spec.release_spec import ReleaseSpec
from trireme.base.errors import SpecError

HOST = "host"
_MIB = 2**20


@dataclass(frozen=True)
class EnginePart:
    """An engine on its devices; bytes are for each device."""

    model: str
    release: int
    devices: tuple[str, ...]
    memory: EngineMemory
    max_seq_len: int
    num_kv_blocks: int  # in the KV cache, or proposed for it
    is_proposed: bool
    pool: str | None  # of engines that are loaded in turns
    whole_sequence: WholeSequence | None = None  # for TensorRT-LLM, which shortens what does not fit

    @property
    def why_cut(self) -> str | None:
        """Return the reason why the KV cache has no room for one whole sequence, or None where it has room."""
        if self.whole_sequence is not None and self.num_kv_blocks:
            blocks, block_tokens = self.num_kv_blocks, self.memory.kv_block_tokens
            return self.whole_sequence.why_cut(num_blocks=blocks, block_tokens=block_tokens)
        if self.kv_tokens < self.max_seq_len:
            return f"there is no room for a KV cache of one sequence of {self.max_seq_len} tokens"
        return None

    @property
    def kv_bytes(self) -> int:
        """Return the bytes of the KV cache on each device."""
        return self.memory.kv_bytes(self.num_kv_blocks)

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the whole engine on each device."""
        return self.memory.fixed_bytes + self.kv_bytes

    @property
    def kv_tokens(self) -> int:
        """Return the tokens that the KV cache holds, over all sequences."""
        return self.num_kv_blocks * self.memory.kv_block_tokens


@dataclass(frozen=True)
class SecondVersion:
    """A second release of a model, like the one that is served, loaded beside every engine."""

    model: str
    num_bytes: int  # on each of its devices
    missing_bytes: int  # on the fullest of them; 0: it fits
    fitting_kv_blocks: int | None  # KV blocks that both versions could have; None: it fits as it is, or never


@dataclass
class DevicePlan:
    """The memory of one device and the engines on it."""

    name: str
    memory_bytes: int | None  # None: not known
    used_bytes: int = 0
    users: list[str] = field(default_factory=list)

    @property
    def free_bytes(self) -> int | None:
        """Return the bytes that are free, or None where the memory is unknown; negative: that many are missing."""
        return None if self.memory_bytes is None else self.memory_bytes - self.used_bytes


@dataclass(frozen=True)
class DeploymentPlan:
    """The memory plan of a deployment."""

    name: str
    engines: tuple[EnginePart, ...]
    devices: tuple[DevicePlan, ...]
    second_versions: tuple[SecondVersion, ...]
    problems: tuple[str, ...]


def plan_deployment(spec: DeploymentSpec, memory_bytes: Mapping[str, int], *, num_gpus: int | None) -> DeploymentPlan:
    """Plan the memory of a deployment's models.

    Args:
        memory_bytes: memory of each known device: "host", "GPU 0".
        num_gpus: number of GPUs; None: not known.

    Raises:
        SpecError: the memory of an engine cannot be found out.
    """
    parts = [_unbounded(model.name, release) for model in spec.models for release in model.releases]
    problems = list(_absent_gpus(parts, num_gpus))
    parts = _propose_caches(parts, memory_bytes)
    devices = _devices(spec, parts, memory_bytes)
    problems += _shortages(devices, parts) + list(_pool_problems(spec, parts))
    return DeploymentPlan(
        name=spec.name,
        engines=tuple(parts),
        devices=tuple(devices.values()),
        second_versions=tuple(_second_versions(spec, parts, devices)),
        problems=tuple(problems),
    )


def _unbounded(model: str, release: ReleaseSpec) -> EnginePart:
    """Return the engine with as many KV blocks as the deployment says, or none."""
    try:
        memory = memory_of(release.engine)
    except SpecError as exc:
        raise SpecError(f"{model}, release {release.release}: {exc.message}", **exc.facts) from exc
    num_kv_blocks = _asked_blocks(release.engine, memory)
    return EnginePart(
        model=model,
        release=release.release,
        devices=tuple(f"GPU {number}" for number in release.gpus) or (HOST,),
        memory=memory,
        max_seq_len=release.engine.max_seq_len,
        num_kv_blocks=num_kv_blocks or 0,
        is_proposed=num_kv_blocks is None,
        pool=None if release.on_demand is None else release.on_demand.pool,
        whole_sequence=_whole_sequence(release.engine),
    )


def _asked_blocks(engine: EngineSpec, memory: EngineMemory) -> int | None:
    """Return the KV cache blocks that the deployment asks for, or has memory for; None: it does not say."""
    if isinstance(engine, VllmEngineSpec) and engine.num_kv_blocks is None and engine.kv_cache_bytes is not None:
        return engine.kv_cache_bytes // memory.kv_bytes(1)
    return engine.num_kv_blocks


def _whole_sequence(engine: EngineSpec) -> WholeSequence | None:
    if not isinstance(engine, TensorRtEngineSpec | PyTorchEngineSpec) or not (engine.dir / "config.json").is_file():
        return None
    return whole_sequence_of(engine)


def _absent_gpus(parts: Sequence[EnginePart], num_gpus: int | None) -> Iterator[str]:
    known = {f"GPU {number}" for number in range(num_gpus or 0)}
    for part in parts:
        absent = [name for name in part.devices if name != HOST and "-" not in name and name not in known]
        if num_gpus is not None and absent:
            places = ", ".join(absent)
            yield f"{_title(part)}: is placed on {places}, and there are {num_gpus} GPUs; change placement.gpus"


def _propose_caches(parts: list[EnginePart], memory_bytes: Mapping[str, int]) -> list[EnginePart]:
    """Give the engines that do not say how large their cache is equal parts of what is left on their devices.

    Two versions of one model count as one, so that there is room for the other while one replaces the other.
    """
    proposed = []
    for part in parts:
        if not part.is_proposed:
            proposed.append(part)
            continue
        free_bytes = []
        for device in part.devices:
            here = [other for other in parts if device in other.devices]
            fixed = sum(other.num_bytes for other in here)
            sharers = sum(other.is_proposed for other in here)
            free_bytes.append((memory_bytes.get(device, 0) - fixed) * _CACHE_SHARE / sharers)
        block_bytes = max(1.0, part.memory.kv_block_tokens * part.memory.kv_bytes_per_token)
        num_blocks = max(0, int(min(free_bytes) / block_bytes))
        proposed.append(replace(part, num_kv_blocks=num_blocks))
    return proposed


_CACHE_SHARE = 0.9  # as TensorRT-LLM's own default of the free memory


def _devices(
    spec: DeploymentSpec, parts: Sequence[EnginePart], memory_bytes: Mapping[str, int]
) -> dict[str, DevicePlan]:
    names = sorted({name for part in parts for name in part.devices})
    devices = {name: DevicePlan(name, memory_bytes.get(name)) for name in names}
    for part in parts:
        for name in part.devices if part.pool is None else ():
            devices[name].used_bytes += part.num_bytes
            devices[name].users.append(_title(part))
    for pool, mib in _pools(spec).items():
        for name in sorted({name for part in parts if part.pool == pool for name in part.devices}):
            devices[name].used_bytes += mib * _MIB
            devices[name].users.append(f"pool {pool}")
    return devices


def _pools(spec: DeploymentSpec) -> dict[str, int]:
    return {
        release.on_demand.pool: release.on_demand.pool_mib for release in spec.releases if release.on_demand is not None
    }


def _shortages(devices: Mapping[str, DevicePlan], parts: Sequence[EnginePart]) -> list[str]:
    found = []
    for device in devices.values():
        if device.free_bytes is None or device.free_bytes >= 0:
            continue
        caches = sum(part.kv_bytes for part in parts if device.name in part.devices and part.pool is None)
        found.append(
            f"{device.name}: {', '.join(device.users)} take {gib(device.used_bytes)}, and there are "
            f"{gib(device.memory_bytes or 0)}; {gib(-device.free_bytes)} too much"
            + _way_out(device, caches, missing=-device.free_bytes)
        )
    return found + [f"{_title(part)}: {why}" for part in parts if (why := part.why_cut) is not None]


def _way_out(device: DevicePlan, caches: int, *, missing: int) -> str:
    if caches >= missing:
        return f", of {gib(caches)} in KV caches: lower engine.num_kv_blocks"
    if any(user.startswith("pool ") for user in device.users):
        return ": lower on_demand.pool_mib, or place a model elsewhere"
    return ": not even without KV caches; place a model elsewhere, quantize it, or load it on_demand"


def _pool_problems(spec: DeploymentSpec, parts: Sequence[EnginePart]) -> Iterator[str]:
    for model in spec.models:
        for release in model.releases:
            if release.on_demand is None:
                continue
            own = [part for part in parts if (part.model, part.release) == (model.name, release.release)]
            need = sum(part.num_bytes for part in own)
            if need > release.on_demand.memory_mib * _MIB:
                yield (
                    f"{model.name}, release {release.release}: takes {gib(need)}, and on_demand.memory_mib says "
                    f"{release.on_demand.memory_mib}; set it to {-(-need // _MIB)}"
                )


def _second_versions(
    spec: DeploymentSpec, parts: Sequence[EnginePart], devices: Mapping[str, DevicePlan]
) -> Iterator[SecondVersion]:
    for model in spec.models:
        own = [part for part in parts if (part.model, part.release) == (model.name, model.release)]
        if own[0].pool is not None:
            continue  # it takes its turn in the pool
        num_bytes = sum(part.num_bytes for part in own)
        frees = [devices[name].free_bytes for name in own[0].devices]
        missing = max((num_bytes - free for free in frees if free is not None), default=0)
        fitting = None
        if missing > 0:
            per_block = sum(part.memory.kv_bytes(1) for part in own)
            saved = -(-missing // (2 * per_block)) if per_block else own[0].num_kv_blocks + 1
            smaller = own[0].num_kv_blocks - saved
            is_enough = smaller * own[0].memory.kv_block_tokens >= own[0].max_seq_len
            fitting = smaller if is_enough else None
        yield SecondVersion(model.name, num_bytes, max(0, missing), fitting)


def _title(part: EnginePart) -> str:
    return f"{part.model} release {part.release}"


def gib(num_bytes: float) -> str:
    """Return bytes for people, in GiB, or in MiB where there are few."""
    return f"{num_bytes / 2**20:.0f} MiB" if num_bytes < 2**30 / 10 else f"{num_bytes / 2**30:.2f} GiB"
