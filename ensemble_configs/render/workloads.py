# SPDX-License-Identifier: Apache-2.0
"""Servers that a cluster runs for a deployment.

Models that share a device or a budget stay on one server, all others have their own, and so has each release beside
the stable one; a router splits the requests between them.

On one machine a release and its candidate are versions on one server. In a cluster they are pods: an engine fills its
GPUs, and what is to be judged should not take its memory from what it is compared with.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.engine.embedding_spec import EmbeddingModelSpec
from ensemble_configs.spec.model_spec import ExtraModelSpec, ModelSpec
from ensemble_configs.spec.release_spec import ReleaseSpec
from trireme.base.errors import SpecError


class Workload(NamedTuple):
    """Equal servers of a cluster.

    Attributes:
        name: name among the workloads of the deployment.
        release: the release of its only model, if that is not the stable one; None: it serves the stable releases.
        beside: the workload that serves the stable release of that model.
        spec: what each of its servers serves; GPUs by number are those of its pod, from 0.
        num_nodes: pods that are one server together.
        gpus_per_node: GPUs of each of these pods.
    """

    name: str
    release: int | None
    beside: str | None
    spec: DeploymentSpec
    num_nodes: int
    gpus_per_node: int


def workloads(spec: DeploymentSpec) -> tuple[Workload, ...]:
    """Return the workloads of a deployment: the stable ones in the order of the models, then the other releases.

    Raises:
        SpecError: something holds only on one machine, or the ranks of an engine do not divide into nodes.
    """
    for model in spec.models:
        for release in model.releases:
            _check_portable(model, release)
    groups = _groups(spec.models, spec.extra_models)
    # Embedding models share nothing with the others, so they are in the first group.
    stable = [
        _workload(spec, models, extras, name=models[0].name, embeddings=() if number else spec.embedding_models)
        for number, (models, extras) in enumerate(groups)
    ]
    others = [
        _workload(spec, [_only(model, other)], (), name=f"{model.name}-{other.release}")._replace(
            release=other.release, beside=home.name
        )
        for home in stable
        for model in spec.models
        if model.name in {served.name for served in home.spec.models}
        for other in model.other_releases
    ]
    return (*stable, *others)


def _check_portable(model: ModelSpec, release: ReleaseSpec) -> None:
    placement = release.placement
    if slices := [gpu for gpu in placement.gpus or () if isinstance(gpu, str)]:
        raise SpecError(
            f"{model.name}: placement.gpus names {slices[0]}, a device of one machine; in a cluster its plugin hands "
            "devices out: number them from 0, or leave placement out",
            field="placement.gpus",
            value=slices[0],
        )
    if placement.cpus is not None:
        raise SpecError(
            f"{model.name}: placement.cpus are cores of one machine; in a cluster a pod asks for a number of them: "
            "leave placement.cpus out",
            field="placement.cpus",
            value=list(placement.cpus),
        )


def _groups(
    models: Sequence[ModelSpec], extras: Sequence[ExtraModelSpec]
) -> list[tuple[list[ModelSpec], list[ExtraModelSpec]]]:
    """Return the groups of models that share something, directly or over other models, in the deployment's order.

    An extra model that shares nothing with a model is in the first group.
    """
    all_of_them: tuple[ModelSpec | ExtraModelSpec, ...] = (*models, *extras)
    groups: list[tuple[set[int], set[tuple[str, object]]]] = []
    for number, one in enumerate(all_of_them):
        numbers, shared = {number}, set(_shares(one))
        if isinstance(one, ExtraModelSpec) and not any(group[1] & shared for group in groups):
            shared.add(("model", models[0].name))
        for other in [group for group in groups if group[1] & shared]:
            groups.remove(other)
            numbers, shared = other[0] | numbers, other[1] | shared
        groups.append((numbers, shared))
    return [
        (
            [model for number, model in enumerate(models) if number in numbers],
            [extra for number, extra in enumerate(extras, len(models)) if number in numbers],
        )
        for numbers, _ in sorted(groups, key=lambda group: min(group[0]))
    ]


def _shares(one: ModelSpec | ExtraModelSpec) -> Iterator[tuple[str, object]]:
    """Yield what the stable release of a model may have in common with other models of its server."""
    if one.rate_limiter is not None:
        yield from (("resource", need.name) for need in one.rate_limiter.resources)
    if isinstance(one, ExtraModelSpec):
        return
    yield "model", one.name
    yield from (("gpu", gpu) for gpu in one.gpus)
    if one.on_demand is not None:
        yield "pool", one.on_demand.pool
    if one.admission is not None and one.admission.budget.shared is not None:
        yield from (("budget", resource.name) for resource in one.admission.budget.shared.resources)


def _only(model: ModelSpec, release: ReleaseSpec) -> ModelSpec:
    """Return the model with another release in the place of its stable one."""
    return model.model_copy(update={name: getattr(release, name) for name in ReleaseSpec.model_fields})


def _workload(
    spec: DeploymentSpec,
    models: Sequence[ModelSpec],
    extras: Sequence[ExtraModelSpec],
    *,
    name: str,
    embeddings: Sequence[EmbeddingModelSpec] = (),
) -> Workload:
    alone = {"other_releases": (), "canary": None, "on_trial": ()}
    gpus = sorted({int(gpu) for model in models for gpu in model.gpus})
    served = tuple(
        model.model_copy(update={**alone, "placement": _renumbered(model, gpus, is_alone=len(models) == 1)})
        for model in models
    )
    limiters = [*(model.rate_limiter for model in served), *(extra.rate_limiter for extra in extras)]
    needed = {need.name for limiter in limiters if limiter is not None for need in limiter.resources}
    return Workload(
        name=name,
        release=None,
        beside=None,
        spec=spec.model_copy(
            update={
                "models": served,
                "extra_models": tuple(extras),
                "embedding_models": tuple(embeddings),
                "rate_limiter": tuple(pool for pool in spec.rate_limiter if pool.name in needed),
            }
        ),
        num_nodes=_num_nodes(models),
        gpus_per_node=len(gpus),
    )


def _renumbered(model: ModelSpec, gpus: Sequence[int], *, is_alone: bool) -> object:
    """Return the model's placement on the GPUs of its pod; a model that has them all needs none."""
    numbers = None if is_alone or not model.gpus else tuple(gpus.index(int(gpu)) for gpu in model.gpus)
    return model.placement.model_copy(update={"gpus": numbers})


def _num_nodes(models: Iterable[ModelSpec]) -> int:
    models = list(models)
    nodes = {model.name: _nodes_of(model) for model in models}
    several = [name for name, number in nodes.items() if number > 1]
    if several and len(models) > 1:
        raise SpecError(
            f"{several[0]} is on {nodes[several[0]]} nodes and shares GPUs or a budget with "
            f"{', '.join(name for name in nodes if name != several[0])}; a server of several nodes has one model: "
            "place them apart",
            field="placement",
        )
    return max(nodes.values())


def _nodes_of(model: ModelSpec) -> int:
    world_size = int(getattr(model.engine, "world_size", 0))
    if not world_size:
        return 1
    if world_size % model.num_gpus:
        raise SpecError(
            f"{model.name}: the engine's {world_size} ranks do not divide into nodes of {model.num_gpus} GPUs; change "
            "engine.gpus_per_node, engine.tp_size or engine.pp_size",
            field="engine.gpus_per_node",
            value=model.num_gpus,
        )
    return world_size // model.num_gpus
