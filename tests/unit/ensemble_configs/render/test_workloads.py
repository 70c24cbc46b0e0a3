# SPDX-License-Identifier: Apache-2.0
"""The servers that a cluster runs for a deployment."""

from typing import Any

import pytest

from ensemble_configs.render.workloads import Workload, workloads
from ensemble_configs.spec.deployment import DeploymentSpec
from trireme.base.errors import SpecError

TOKENIZER = {"tokenizer": {"dir": "/models/tokenizer"}}


def on_gpu(name: str, *, gpus: list[object] | None = None, **engine: object) -> dict[str, Any]:
    placement = {} if gpus is None else {"placement": {"gpus": gpus}}
    return {
        "name": name,
        **TOKENIZER,
        **placement,
        "engine": {"provider": "tensorrt", "dir": f"/models/{name}", "num_kv_blocks": 100, **engine},
    }


def simulated(name: str, **more: object) -> dict[str, Any]:
    return {"name": name, **TOKENIZER, "engine": {"provider": "simulated"}, **more}


def made(*models: dict[str, Any], **more: object) -> tuple[Workload, ...]:
    return workloads(DeploymentSpec.model_validate({"name": "site", "models": models, **more}))


def served(found: tuple[Workload, ...]) -> dict[str, list[str]]:
    return {one.name: [model.name for model in one.spec.models] for one in found}


def test_models_that_share_nothing_have_servers_of_their_own() -> None:
    found = made(on_gpu("chat", gpus=[0, 1], tp_size=2), on_gpu("code", gpus=[2]), simulated("toy"))

    assert served(found) == {"chat": ["chat"], "code": ["code"], "toy": ["toy"]}
    assert [one.gpus_per_node for one in found] == [2, 1, 0]
    assert [one.spec.models[0].placement.gpus for one in found] == [None, None, None]


def test_models_on_one_gpu_stay_together_and_so_does_what_is_between_them() -> None:
    found = made(
        on_gpu("a", gpus=[4]), on_gpu("b", gpus=[6]), on_gpu("c", gpus=[5]), on_gpu("d", gpus=[4, 5], tp_size=2)
    )

    assert served(found) == {"a": ["a", "c", "d"], "b": ["b"]}
    together = found[0]
    assert together.gpus_per_node == 2
    assert [model.placement.gpus for model in together.spec.models] == [(0,), (1,), (0, 1)]


@pytest.mark.parametrize(
    "shared",
    [
        {"on_demand": {"pool_mib": 100, "memory_mib": 60}},
        {"admission": {"budget": {"shared": {"resources": [{"name": "slots", "count": 8}]}}}},
        {"rate_limiter": {"resources": [{"name": "cores"}]}},
    ],
    ids=["memory in turns", "a budget", "a resource of Triton's rate limiter"],
)
def test_models_that_share_something_else_stay_together(shared: dict[str, object]) -> None:
    pools = [{"name": "cores", "count": 2}] if "rate_limiter" in shared else []
    found = made(simulated("a", **shared), simulated("b"), simulated("c", **shared), rate_limiter=pools)

    assert served(found) == {"a": ["a", "c"], "b": ["b"]}
    assert [len(one.spec.rate_limiter) for one in found] == [len(pools), 0]


def test_a_release_beside_the_stable_one_is_a_server_of_its_own_under_the_same_names() -> None:
    other = {"release": 2, **TOKENIZER, "engine": {"provider": "simulated", "step_ms": 3}}
    stable, candidate = made(simulated("chat", other_releases=[other], canary=2))

    assert (stable.name, stable.release) == ("chat", None)
    assert (candidate.name, candidate.release) == ("chat-2", 2)
    for one in (stable, candidate):
        assert one.spec.models[0].other_releases == ()
        assert one.spec.models[0].canary is None
    assert candidate.spec.models[0].release == 2
    assert candidate.spec.models[0].engine.step_ms == 3  # type: ignore[union-attr]
    assert candidate.spec.models[0].triton_names == stable.spec.models[0].triton_names


def test_extra_models_are_where_they_share_a_resource_and_keep_together_who_shares_it_with_them() -> None:
    cores, threads = {"resources": [{"name": "cores"}]}, {"resources": [{"name": "threads"}]}
    both = {"resources": [*cores["resources"], *threads["resources"]]}
    found = made(
        simulated("a"),
        simulated("b", rate_limiter=cores),
        simulated("c", rate_limiter=threads),
        extra_models=[
            {"name": "plain", "dir": "/models/plain"},
            {"name": "limited", "dir": "/models/limited", "rate_limiter": both},
        ],
        rate_limiter=[{"name": "cores", "count": 2}, {"name": "threads", "count": 2}],
    )

    assert served(found) == {"a": ["a"], "b": ["b", "c"]}
    assert [[extra.name for extra in one.spec.extra_models] for one in found] == [["plain"], ["limited"]]
    assert [len(one.spec.rate_limiter) for one in found] == [0, 2]


def test_extra_models_are_otherwise_on_the_first_server() -> None:
    found = made(simulated("a"), simulated("b"), extra_models=[{"name": "embedding", "dir": "/models/embedding"}])
    assert [[extra.name for extra in one.spec.extra_models] for one in found] == [["embedding"], []]


def test_an_engine_over_nodes_is_as_many_pods() -> None:
    [one] = made(on_gpu("large", tp_size=8, pp_size=2, gpus_per_node=8))
    assert (one.num_nodes, one.gpus_per_node) == (2, 8)


@pytest.mark.parametrize("spec", [one.spec for one in made(on_gpu("a", gpus=[3]), on_gpu("b", gpus=[3]))])
def test_what_a_server_serves_is_a_deployment_that_can_be_read_again(spec: DeploymentSpec) -> None:
    plain = spec.model_dump(mode="json", exclude_none=True)
    assert DeploymentSpec.model_validate(plain) == spec


@pytest.mark.parametrize(
    ("models", "match"),
    [
        ([on_gpu("a", gpus=["MIG-1234"])], r"a: placement.gpus names MIG-1234"),
        ([{**simulated("a"), "placement": {"cpus": [0, 1]}}], r"a: placement.cpus are cores of one machine"),
        ([on_gpu("a", tp_size=6, gpus_per_node=4)], r"a: the engine's 6 ranks do not divide into nodes of 4 GPUs"),
        (
            [on_gpu("a", tp_size=4, gpus_per_node=2), on_gpu("b", gpus=[1])],
            r"a is on 2 nodes and shares GPUs or a budget with b",
        ),
    ],
)
def test_what_holds_only_on_one_machine_is_refused_by_name(models: list[dict[str, Any]], match: str) -> None:
    with pytest.raises(SpecError, match=match):
        made(*models)
