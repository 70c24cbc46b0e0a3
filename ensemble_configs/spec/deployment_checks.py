# SPDX-License-Identifier: Apache-2.0
"""Checks of parts of a deployment that do not go together; each finding names the keys and the next step."""

from collections import Counter
from collections.abc import Iterator, Sequence

from pydantic import Field

from ensemble_configs.spec.base import NotNegative, Positive, Spec
from ensemble_configs.spec.engine.embedding_spec import EmbeddingModelSpec
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec, TensorRtEngineSpec
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from ensemble_configs.spec.model_spec import ExtraModelSpec, ModelSpec, RateLimiterSpec, ResourceName, ResourceNeed

_MAX_SHARED = 32
_OnGpus = TensorRtEngineSpec | PyTorchEngineSpec | VllmEngineSpec  # take the memory that they find, unless told
_LLM_DEVICE = 0  # Triton counts an instance that is of KIND_CPU as one of device 0


class RateLimiterPool(Spec):
    """A resource of Triton's rate limiter: `--rate-limit-resource`."""

    name: ResourceName = Field(description="name of the resource")
    count: Positive = Field(description="how many of the resource there are")
    device: NotNegative | None = Field(default=None, description="none: so much of each device")


def find_clashes(
    models: Sequence[ModelSpec],
    extra_models: Sequence[ExtraModelSpec],
    pools: Sequence[RateLimiterPool],
    embedding_models: Sequence[EmbeddingModelSpec] = (),
) -> list[str]:
    """Return everything that is wrong between the models of a server."""
    return [
        *_equal_names(models, extra_models, embedding_models),
        *_pools_twice(pools),
        *_resources(models, extra_models, pools),
        *_memory_pools(models),
        *_too_many_shared(models),
        *_shared_counts(models),
    ]


def _equal_names(
    models: Sequence[ModelSpec],
    extra_models: Sequence[ExtraModelSpec],
    embedding_models: Sequence[EmbeddingModelSpec],
) -> Iterator[str]:
    for name, count in Counter(model.name for model in models).items():
        if count > 1:
            yield f"models: {count} have the name {name}; give each its own"
    for name in {model.name for model in embedding_models} & {model.name for model in models}:
        yield f"embedding_models: {name} is the name of a language model, too; give it another"
    taken = Counter(name for model in models for name in model.triton_names)
    taken.update(model.name for model in extra_models)
    taken.update(model.name for model in embedding_models)
    if twice := [name for name, count in taken.items() if count > 1]:
        where = "extra_models" if {model.name for model in extra_models} & set(twice) else "models"
        where = "embedding_models" if {model.name for model in embedding_models} & set(twice) else where
        yield f"{where}: two of Triton's would be called {', '.join(twice[:3])}; change a model's name or prefix"


def _pools_twice(pools: Sequence[RateLimiterPool]) -> Iterator[str]:
    for (name, device), count in Counter((pool.name, pool.device) for pool in pools).items():
        if count > 1:
            of_device = "" if device is None else f" of device {device}"
            yield f"rate_limiter: {name}{of_device} stands {count} times; keep one"


def _resources(
    models: Sequence[ModelSpec], extra_models: Sequence[ExtraModelSpec], pools: Sequence[RateLimiterPool]
) -> Iterator[str]:
    users = [
        *((model.name, model.rate_limiter) for model in models),
        *((extra.name, extra.rate_limiter) for extra in extra_models),
    ]
    needs = [(user, need) for user, limiter in users if limiter is not None for need in limiter.resources]
    for user, need in needs:
        yield from _unmet(user, need, pools)
    yield from _both_global_and_not(needs)
    for model in models:
        yield from _device_of_several(model)
    for name in sorted({pool.name for pool in pools} - {need.name for _, need in needs}):
        yield (
            f"rate_limiter: none of the models takes {name}; name it in the rate_limiter.resources of one, or leave it "
            "out"
        )


def _unmet(user: str, need: ResourceNeed, pools: Sequence[RateLimiterPool]) -> Iterator[str]:
    named = [pool for pool in pools if pool.name == need.name]
    if not named:
        close = [pool.name for pool in pools if pool.name.lower() == need.name.lower()]
        hint = f"; {close[0]} is another, for case counts" if close else ""
        yield (
            f"{user}: rate_limiter.resources takes {need.count} of {need.name}, of which Triton has 0, for "
            f"rate_limiter does not name it{hint}; add it there with a count"
        )
        return
    if need.is_global and any(pool.device is not None for pool in named):
        yield f"{user}: {need.name} is global, so rate_limiter must name it without a device"
        return
    usable = [pool.count for pool in named if pool.device in (None, _LLM_DEVICE)]
    if not usable or max(usable) < need.count:
        there = f"{max(usable)} of it" if usable else f"none of it on device {_LLM_DEVICE}"
        yield (
            f"{user}: takes {need.count} of {need.name} at once, and there is {there}; raise the count in rate_limiter"
        )


def _both_global_and_not(needs: Sequence[tuple[str, ResourceNeed]]) -> Iterator[str]:
    for name in sorted({need.name for _, need in needs if need.is_global}):
        if local := [user for user, need in needs if need.name == name and not need.is_global]:
            yield (
                f"rate_limiter.resources: {name} is global for some models and not for {', '.join(local)}; Triton "
                "refuses that; say the same"
            )


def _device_of_several(model: ModelSpec) -> Iterator[str]:
    """Yield a finding for device resources of an engine that spans devices, which Triton counts on device 0 alone."""
    num_gpus = max(getattr(release.engine, "world_size", 1) for release in model.releases)
    limiter = model.rate_limiter or RateLimiterSpec()
    if num_gpus > 1 and (local := [need.name for need in limiter.resources if not need.is_global]):
        yield (
            f"{model.name}: runs on {num_gpus} GPUs, but Triton would count {', '.join(local)} on device "
            f"{_LLM_DEVICE} alone; set is_global"
        )


def _memory_pools(models: Sequence[ModelSpec]) -> Iterator[str]:
    """Yield a finding where engines that are loaded in turns disagree about the memory that they share."""
    sizes: dict[str, dict[int, str]] = {}
    for model in models:
        for release in model.releases:
            if release.on_demand is not None:
                sizes.setdefault(release.on_demand.pool, {}).setdefault(release.on_demand.pool_mib, model.name)
    for pool, said in sizes.items():
        if len(said) > 1:
            figures = ", ".join(f"{mib} by {name}" for mib, name in said.items())
            yield f"on_demand.pool_mib: pool {pool} is said to be {figures}; say the same"


def _too_many_shared(models: Sequence[ModelSpec]) -> Iterator[str]:
    """Yield a finding if the server's ledger (`serving.shared_budget.ledger_file`) has no room for all resources."""
    names: set[tuple[str, str]] = set()
    for model in models:
        for release in model.releases:
            shared = release.admission.budget.shared if release.admission is not None else None
            names |= {("resource", resource.name) for resource in (shared.resources if shared is not None else ())}
            names |= {("pool", release.on_demand.pool)} if release.on_demand is not None else set()
    if len(names) > _MAX_SHARED:
        yield (
            f"admission.budget.shared and on_demand.pool name {len(names)} different resources and pools; a server has "
            f"room for {_MAX_SHARED}; let models share them"
        )


def unbounded_caches(models: Sequence[ModelSpec]) -> Iterator[str]:
    """Yield a message for each group of engines that share a GPU without saying how much of it.

    TensorRT-LLM takes a part of what is free when it loads, vLLM of the whole memory, and Triton loads models at the
    same time. Not refused when the file is read: `trireme plan --deployment` reads it and proposes what to set.
    """
    engines = [(model.name, release) for model in models for release in model.releases]
    on_gpu = [(name, release) for name, release in engines if isinstance(release.engine, _OnGpus) and release.num_gpus]
    for number, (name, release) in enumerate(on_gpu):
        others = [other for at, (other, of) in enumerate(on_gpu) if at != number and set(release.gpus) & set(of.gpus)]
        assert isinstance(release.engine, _OnGpus)
        if others and release.engine.num_kv_blocks is None:
            yield (
                f"{name}: release {release.release} shares a GPU with {', '.join(sorted(set(others)))}; without "
                "engine.num_kv_blocks its KV cache is a part of what happens to be free while they load; set it "
                "(`trireme plan --deployment` proposes how many), or placement.gpus apart"
            )


def _shared_counts(models: Sequence[ModelSpec]) -> Iterator[str]:
    """Yield a finding where models give different counts of a resource that they share."""
    counts: dict[str, dict[int, list[str]]] = {}
    for model in models:
        for release in model.releases:
            shared = release.admission and release.admission.budget.shared
            for resource in shared.resources if shared else ():
                counts.setdefault(resource.name, {}).setdefault(resource.count, []).append(model.name)
    for name, users in counts.items():
        if len(users) > 1:
            said = ", ".join(f"{count} in {', '.join(dict.fromkeys(names))}" for count, names in users.items())
            yield f"admission.budget.shared: {name} has the count {said}; all must say the same"
