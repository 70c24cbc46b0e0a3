# SPDX-License-Identifier: Apache-2.0
"""Many deployments on one server: each with its own names and its own resources of the rate limiter.

What is equal to what another has already loaded is loaded once.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from deployment_mutations import Mutation

from ensemble_configs.render.launch_flags import launch_flags
from ensemble_configs.render.model_configs import model_messages
from ensemble_configs.render.release_file import render_release
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.model_spec import ExtraModelSpec, ModelSpec, RateLimiterSpec
from ensemble_configs.spec.release_spec import ReleaseSpec

MIN_LOAD_TIMEOUT_S = 120.0
MAX_PROCESSES = 48  # of one server at a time: some 65 MiB each
_ROOT = Path("/models")


@dataclass
class Pack:
    """Deployments that one server can hold at once.

    Attributes:
        spec: all that is to be loaded, as one deployment.
        asked: a deployment's Triton model that is to answer for it.
    """

    spec: DeploymentSpec
    asked: dict[Mutation, str] = field(default_factory=dict)
    num_processes: int = 0


def packs(deployments: Iterable[tuple[Mutation, DeploymentSpec]]) -> Iterator[Pack]:
    """Yield packs of deployments that need the same of the server."""
    groups: dict[str, list[tuple[Mutation, DeploymentSpec]]] = {}
    for mutation, spec in deployments:
        groups.setdefault(_server_of(spec), []).append((mutation, spec))
    for group in groups.values():
        yield from _packs_of(sorted(group, key=lambda each: each[0].base))  # of one base: much of them is equal


def _packs_of(group: list[tuple[Mutation, DeploymentSpec]]) -> Iterator[Pack]:
    loaded: dict[str, str] = {}  # what there is already, by content: the name of its engine step
    pack = Pack(_none_of(group[0][1]))
    for mutation, spec in group:
        own = _renamed(spec, f"d{mutation.number}_")
        new = [model for model in own.models if _content(model, own) not in loaded]
        others = len(own.extra_models) + len(own.embedding_models)
        size = sum(map(_num_processes, new)) + others
        if pack.num_processes + size > MAX_PROCESSES:
            yield pack
            pack, loaded = Pack(_none_of(spec)), {}
            new, size = list(own.models), sum(map(_num_processes, own.models)) + others
        loaded |= {_content(model, own): f"{model.triton_prefix}tensorrt_llm" for model in new}
        pack.asked[mutation] = loaded[_content(own.models[0], own)]
        pack.num_processes += size
        pack.spec = pack.spec.model_copy(
            update={
                "models": (*pack.spec.models, *new),
                "extra_models": (*pack.spec.extra_models, *own.extra_models),
                "embedding_models": (*pack.spec.embedding_models, *own.embedding_models),
                "rate_limiter": (*pack.spec.rate_limiter, *own.rate_limiter),
            }
        )
    yield pack


def _server_of(spec: DeploymentSpec) -> str:
    """Return what only another start of the server changes.

    Left out are ports, which are others here, and pools, which add up.
    """
    flags = [(name, value) for name, value in launch_flags(spec) if not name.endswith("-port")]
    own = [flag for flag in flags if flag[0] != "rate-limit-resource"]
    return json.dumps([own, spec.triton.triton_max_batch_size, _shared_counts(spec)])


def _shared_counts(spec: DeploymentSpec) -> list[tuple[str, int]]:
    """Return the counts of the server's ledger, which all models name alike and which has room for few names."""
    budgets = [release.admission.budget.shared for release in spec.releases if release.admission is not None]
    return sorted({(each.name, each.count) for budget in budgets if budget is not None for each in budget.resources})


def _none_of(spec: DeploymentSpec) -> DeploymentSpec:
    return spec.model_copy(update={"models": (), "extra_models": (), "embedding_models": (), "rate_limiter": ()})


def _num_processes(model: ModelSpec) -> int:
    stubs = sum(getattr(model.instances, step, 0) for step in model.steps)
    return len(model.releases) * (1 + stubs)


def _content(model: ModelSpec, spec: DeploymentSpec) -> str:
    """Return everything that Triton and its stubs read of a model but its name."""
    nameless = model.model_copy(update={"prefix": ""})
    releases = [render_release(release, folder=_ROOT) for release in model.releases]
    return json.dumps([model_messages(nameless, spec.triton), releases])


def _renamed(spec: DeploymentSpec, mark: str) -> DeploymentSpec:
    pools = tuple(pool.model_copy(update={"name": mark + pool.name}) for pool in spec.rate_limiter)
    models = tuple(_renamed_model(model, f"{mark}{number}_", mark) for number, model in enumerate(spec.models))
    extras = tuple(_renamed_extra(extra, mark) for extra in spec.extra_models)
    embeddings = tuple(each.model_copy(update={"name": mark + each.name}) for each in spec.embedding_models)
    return spec.model_copy(
        update={"models": models, "extra_models": extras, "embedding_models": embeddings, "rate_limiter": pools}
    )


def _renamed_model(model: ModelSpec, prefix: str, mark: str) -> ModelSpec:
    changes: dict[str, object] = {
        "prefix": prefix,
        "rate_limiter": _renamed_limiter(model.rate_limiter, mark),
        "on_demand": _renamed_pool(model, mark),
        "engine": _patient(model),
        "other_releases": tuple(
            other.model_copy(update={"on_demand": _renamed_pool(other, mark), "engine": _patient(other)})
            for other in model.other_releases
        ),
    }
    return model.model_copy(update=changes)


def _patient(release: ReleaseSpec) -> object:
    """Return an engine with the time that loading takes beside some fifty other processes."""
    load_timeout_s = max(release.engine.load_timeout_s, MIN_LOAD_TIMEOUT_S)
    return release.engine.model_copy(update={"load_timeout_s": load_timeout_s})


def _renamed_extra(extra: ExtraModelSpec, mark: str) -> ExtraModelSpec:
    limiter = _renamed_limiter(extra.rate_limiter, mark)
    return extra.model_copy(update={"name": mark + extra.name, "rate_limiter": limiter})


def _renamed_limiter(limiter: RateLimiterSpec | None, mark: str) -> RateLimiterSpec | None:
    if limiter is None:
        return None
    needs = tuple(need.model_copy(update={"name": mark + need.name}) for need in limiter.resources)
    return limiter.model_copy(update={"resources": needs})


def _renamed_pool(release: ReleaseSpec, mark: str) -> object:
    on_demand = release.on_demand
    return on_demand and on_demand.model_copy(update={"pool": (mark + on_demand.pool)[:64]})
