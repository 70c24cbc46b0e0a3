# SPDX-License-Identifier: Apache-2.0
"""A deployment of several models: Triton's part of each, and the refusal by name of what does not go together."""

import os
from pathlib import Path

import pytest
import yaml
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from ensemble_configs.render.launch_flags import launch_flags
from ensemble_configs.render.release_file import load_release
from ensemble_configs.render.repository import render_repository, write_repository
from ensemble_configs.spec.deployment import DeploymentSpec, load_deployment
from ensemble_configs.spec.model_names import MODELS
from ensemble_configs.spec.release_spec import PlacementSpec
from serving.process.placement import take_place
from trireme.base.errors import SpecError

Data = dict[str, object]


def model(name: str, engine: Data | None = None, **more: object) -> Data:
    engine = {"provider": "simulated"} | (engine or {})
    return {"name": name, "tokenizer": {"dir": "/tok"}, "engine": engine, **more}


def needing(*names: str, **more: object) -> Data:
    return {"resources": [{"name": name, **more} for name in names]}


def load(tmp_path: Path, *models: Data, **more: object) -> DeploymentSpec:
    path = tmp_path / "d.yaml"
    path.write_text(yaml.safe_dump({"name": "pair", "models": list(models), **more}))
    return load_deployment(path)


def configs(spec: DeploymentSpec) -> dict[str, model_config_pb2.ModelConfig]:
    files = render_repository(spec, root=Path("/models"), source="d.yaml")
    return {
        path.parent.name: text_format.Parse(text, model_config_pb2.ModelConfig())
        for path, text in files.items()
        if path.name == "config.pbtxt"
    }


def test_every_model_has_its_own_set_behind_its_name(tmp_path: Path) -> None:
    found = configs(load(tmp_path, model("chat"), model("code"), model("old", prefix="")))
    assert set(found) == {prefix + step for prefix in ("chat_", "code_", "") for step in MODELS}
    assert all(config.name == name for name, config in found.items())
    steps = [step.model_name for step in found["code_ensemble_graph"].ensemble_scheduling.step]
    assert steps == ["code_preprocessing", "code_tensorrt_llm", "code_postprocessing"]


def test_a_model_by_itself_keeps_upstreams_names(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text("name: one\ntokenizer: {dir: tok}\nengine: {provider: simulated}\n")
    spec = load_deployment(path)
    assert set(configs(spec)) == set(MODELS)
    assert spec.model.name == "one"


def test_several_releases_of_a_model_are_loaded_and_whoever_names_none_gets_the_first(tmp_path: Path) -> None:
    others = [
        {"release": n, "tokenizer": {"dir": "/tok"}, "engine": {"provider": "simulated", "seed": n}} for n in (3, 1)
    ]
    spec = load(tmp_path, model("chat", release=2, other_releases=others))
    found = configs(spec)
    versions = {name: list(config.version_policy.specific.versions) for name, config in found.items()}
    assert versions == {
        **{f"chat_{step}": [1, 2, 3] for step in ("preprocessing", "tensorrt_llm", "postprocessing")},
        **{f"chat_{step}": [1, 2] for step in ("ensemble", "tensorrt_llm_bls")},
        "chat_ensemble_graph": [2],
    }
    assert {step.model_version for step in found["chat_ensemble_graph"].ensemble_scheduling.step} == {2}
    write_repository(spec, root=tmp_path / "models", source="d.yaml")
    seeds = [
        load_release(tmp_path / f"models/chat_tensorrt_llm_bls/{n}").engine.model_dump()["seed"] for n in (1, 2, 3)
    ]
    assert seeds == [1, 0, 3]


def test_the_rate_limiter_is_on_the_steps_that_start_generations_and_on_the_command_line(tmp_path: Path) -> None:
    limiter = {"resources": [{"name": "slots", "count": 2}, {"name": "pool", "is_global": True}], "priority": 3}
    pools = [{"name": "slots", "count": 4}, {"name": "slots", "count": 8, "device": 1}, {"name": "pool", "count": 1}]
    spec = load(tmp_path, model("chat", rate_limiter=limiter), model("code"), rate_limiter=pools)
    found = configs(spec)
    limited = {name: config.instance_group[0].rate_limiter for name, config in found.items() if config.instance_group}
    with_resources = {name for name, each in limited.items() if each.resources}
    assert with_resources == {"chat_tensorrt_llm", "chat_ensemble", "chat_tensorrt_llm_bls"}
    each = limited["chat_ensemble"]
    assert [(need.name, need.count, getattr(need, "global")) for need in each.resources] == [
        ("slots", 2, False),
        ("pool", 1, True),
    ]
    assert each.priority == 3
    flags = [(name, value) for name, value in launch_flags(spec) if name.startswith("rate-limit")]
    assert flags == [
        ("rate-limit", "execution_count"),
        ("rate-limit-resource", "slots:4"),
        ("rate-limit-resource", "slots:8:1"),
        ("rate-limit-resource", "pool:1"),
    ]
    assert not any(name.startswith("rate-limit") for name, _ in launch_flags(load(tmp_path, model("chat"))))


def test_priorities_are_declared_at_every_step_that_may_queue(tmp_path: Path) -> None:
    found = configs(load(tmp_path, model("chat", triton_queue={"priority_levels": 4, "max_queue_size": 9})))
    levels = {name: config.dynamic_batching.priority_levels for name, config in found.items()}
    honouring = ("chat_preprocessing", "chat_tensorrt_llm", "chat_ensemble", "chat_tensorrt_llm_bls")
    assert levels == dict.fromkeys(honouring, 4) | {"chat_postprocessing": 0, "chat_ensemble_graph": 0}
    assert {found[name].dynamic_batching.default_queue_policy.max_queue_size for name in honouring} == {9}


@pytest.mark.parametrize(
    ("host", "http", "grpc"),
    [("0.0.0.0", "0.0.0.0", "0.0.0.0"), ("::1", "ipv6:::1", "[::1]"), ("localhost", "localhost", "localhost")],
)
def test_addresses_are_written_as_each_of_tritons_servers_reads_them(
    tmp_path: Path, host: str, http: str, grpc: str
) -> None:
    flags = dict(launch_flags(load(tmp_path, model("chat"), triton={"host": host})))
    assert (flags["http-address"], flags["metrics-address"], flags["grpc-address"]) == (http, http, grpc)


def test_only_what_is_asked_for_is_served(tmp_path: Path) -> None:
    few, none = model("few", endpoints=["ensemble"]), model("none", endpoints=[])
    graph = model("graph", endpoints=["ensemble_graph"])
    assert set(configs(load(tmp_path, few, none, graph))) == {
        "few_tensorrt_llm", "few_ensemble", "none_tensorrt_llm",
        "graph_preprocessing", "graph_tensorrt_llm", "graph_postprocessing", "graph_ensemble_graph",
    }  # fmt: skip


def test_tokenizers_may_be_several(tmp_path: Path) -> None:
    found = configs(load(tmp_path, model("chat", instances={"preprocessing": 3})))
    assert {name: c.instance_group[0].count for name, c in found.items() if c.instance_group} == {
        "chat_preprocessing": 3,
        **dict.fromkeys(("chat_tensorrt_llm", "chat_postprocessing", "chat_ensemble", "chat_tensorrt_llm_bls"), 1),
    }


TP2: Data = {"provider": "pytorch", "dir": "/m", "tp_size": 2, "num_kv_blocks": 64}
REFUSED: list[tuple[str, list[Data], Data, str]] = [
    ("equal names", [model("a"), model("a")], {}, "models: 2 have the name a; give each its own"),
    ("equal prefixes", [model("a", prefix="x_"), model("b", prefix="x_")], {}, "would be called x_preprocessing"),
    ("no models", [], {}, "models: tuple should have at least 1 item"),
    ("unknown key", [model("a", colour=1)], {}, "models.a.colour: extra inputs are not permitted (got 1)"),
    ("beside models", [model("a")], {"engine": {}}, "engine: extra inputs are not permitted; allowed here: "),
    ("mistyped beside models", [model("a")], {"extra_model": []}, "did you mean extra_models?"),
    (
        "wrong value",
        [model("a"), model("b", {"num_kv_blocks": 0})],
        {},
        "models.b.engine.num_kv_blocks: input should be greater than or equal to 1 (got 0)",
    ),
    (
        "unlisted resource",
        [model("a", rate_limiter=needing("slots"))],
        {},
        "a: rate_limiter.resources takes 1 of slots, of which Triton has 0, for rate_limiter does not name it; add it",
    ),
    (
        "case of a resource",
        [model("a", rate_limiter=needing("Slots"))],
        {"rate_limiter": [{"name": "slots", "count": 2}]},
        "slots is another, for case counts",
    ),
    (
        "too little of a resource",
        [model("a", rate_limiter=needing("slots", count=3))],
        {"rate_limiter": [{"name": "slots", "count": 2}]},
        "a: takes 3 of slots at once, and there is 2 of it; raise the count in rate_limiter",
    ),
    (
        "resource of another device",
        [model("a", rate_limiter=needing("slots"))],
        {"rate_limiter": [{"name": "slots", "count": 2, "device": 1}]},
        "there is none of it on device 0",
    ),
    (
        "global resource of a device",
        [model("a", rate_limiter=needing("pool", is_global=True))],
        {"rate_limiter": [{"name": "pool", "count": 2, "device": 0}]},
        "a: pool is global, so rate_limiter must name it without a device",
    ),
    (
        "global and not",
        [model("a", rate_limiter=needing("pool", is_global=True)), model("b", rate_limiter=needing("pool"))],
        {"rate_limiter": [{"name": "pool", "count": 2}]},
        "pool is global for some models and not for b",
    ),
    (
        "several devices without global",
        [model("a", TP2, rate_limiter=needing("pool"))],
        {"rate_limiter": [{"name": "pool", "count": 2}]},
        "a: runs on 2 GPUs, but Triton would count pool on device 0 alone; set is_global",
    ),
    (
        "resource nobody takes",
        [model("a")],
        {"rate_limiter": [{"name": "pool", "count": 2}]},
        "rate_limiter: none of the models takes pool",
    ),
    (
        "resource twice",
        [model("a", rate_limiter=needing("pool"))],
        {"rate_limiter": [{"name": "pool", "count": 2, "device": 0}, {"name": "pool", "count": 1, "device": 0}]},
        "rate_limiter: pool of device 0 stands 2 times; keep one",
    ),
    (
        "a resource twice in a model",
        [model("a", rate_limiter=needing("pool", "pool"))],
        {"rate_limiter": [{"name": "pool", "count": 2}]},
        "models.a.rate_limiter: resources must have different names",
    ),
    (
        "more of a step than is served",
        [model("a", endpoints=["ensemble"], instances={"preprocessing": 2})],
        {},
        "models.a: instances.preprocessing is 2, but endpoints (ensemble) need no preprocessing",
    ),
    (
        "a model of the user's own twice",
        [model("a")],
        {"extra_models": [{"name": "embed", "dir": "/e"}, {"name": "embed", "dir": "/e"}]},
        "extra_models: two of Triton's would be called embed",
    ),
    (
        "a built release that is not",
        [model("a", release_dir="/r")],
        {},
        "models.a: release_dir: an engine of the provider simulated is not built",
    ),
    (
        "too many ranks",
        [model("a", TP2 | {"tp_size": 64, "pp_size": 32})],
        {},
        "tp_size * pp_size * cp_size is 2048 ranks; an engine may have 1024",
    ),
    (
        "two engines",
        [model("a", instances={"tensorrt_llm": 2})],
        {},
        "models.a.instances: tensorrt_llm must be 1, for it owns the engine",
    ),
    (
        "default level",
        [model("a", triton_queue={"priority_levels": 2, "default_priority_level": 3})],
        {},
        "default_priority_level must be at most priority_levels (2), got 3",
    ),
    (
        "equal releases",
        [model("a", other_releases=[{"release": 1, "tokenizer": {"dir": "/t"}, "engine": {"provider": "simulated"}}])],
        {},
        "models.a: releases must have different numbers, got 1, 1",
    ),
    (
        "GPUs for ranks",
        [model("a", TP2, placement={"gpus": [0]})],
        {},
        "placement.gpus names 1 GPUs, but the engine has 2 ranks on a node",
    ),
    ("an endpoint twice", [model("a", endpoints=["ensemble", "ensemble"])], {}, "models.a: endpoints must differ"),
    (
        "a GPU for the CPU",
        [model("a", placement={"gpus": [0]})],
        {},
        "placement.gpus and mps_thread_percentage are for",
    ),
    (
        "pools for all",
        [model(f"m{n}", on_demand={"pool": f"p{n}", "pool_mib": 10, "memory_mib": 10}) for n in range(33)],
        {},
        "on_demand.pool name 33 different resources and pools; a server has room for 32",
    ),
    ("a GPU twice", [model("a", placement={"gpus": [0, 0]})], {}, "models.a.placement: gpus must differ, got [0, 0]"),
    (
        "a piece of a prompt",
        [model("a", TP2 | {"max_num_batched_tokens": 16})],
        {},
        "max_num_batched_tokens (16) is less than the smallest piece of a prompt, a KV block of 32 tokens",
    ),
]


@pytest.mark.parametrize(("models", "more", "finding"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_does_not_go_together_is_refused_by_name(
    tmp_path: Path, models: list[Data], more: Data, finding: str
) -> None:
    with pytest.raises(SpecError) as caught:
        load(tmp_path, *models, **more)
    assert finding in str(caught.value)
    assert "\n" not in str(caught.value)


def test_engines_that_share_a_gpu_say_how_much_of_it(tmp_path: Path) -> None:
    free = TP2 | {"num_kv_blocks": None}
    configs(load(tmp_path, model("a", free, placement={"gpus": [0, 1]}), model("b", free, placement={"gpus": [2, 3]})))
    sharing = load(tmp_path, model("a", free), model("b", TP2, placement={"gpus": [1, 2]}))
    with pytest.raises(SpecError, match=r"a: release 1 shares a GPU with b; without engine.num_kv_blocks its KV cache"):
        configs(sharing)


def test_a_key_that_stands_twice_is_refused_with_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text("name: x\nengine: {provider: simulated}\nname: y\n")
    with pytest.raises(SpecError, match=r"the key 'name' of line 1 stands again in line 3; keep one"):
        load_deployment(path)
    path.write_text("a: &x {provider: simulated}\nb: {<<: *x, seed: 1}\n")
    with pytest.raises(SpecError, match=r"extra inputs"):  # merged mappings are no such thing
        load_deployment(path)


@pytest.fixture
def extra(tmp_path: Path) -> Path:
    folder = tmp_path / "embed"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text("# the user's")
    (folder / "config.pbtxt").write_text('name: "embed"\nbackend: "python"\nmax_batch_size: 8\n')
    return folder


def test_a_model_of_the_users_own_is_taken_with_its_part_in_the_rate_limiter(tmp_path: Path, extra: Path) -> None:
    more: Data = {
        "extra_models": [{"name": "embed", "dir": "embed", "instances": 2, "rate_limiter": needing("slots")}],
        "rate_limiter": [{"name": "slots", "count": 2}],
    }
    spec = load(tmp_path, model("chat"), **more)
    root = tmp_path / "models"
    write_repository(spec, root=root, source="d.yaml")
    config = text_format.Parse((root / "embed/config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    assert (config.max_batch_size, config.instance_group[0].count) == (8, 2)
    assert config.instance_group[0].rate_limiter.resources[0].name == "slots"
    assert (root / "embed/1/model.py").read_text() == "# the user's"
    assert write_repository(spec, root=root, source="d.yaml") == []
    without = load(tmp_path, model("chat"))
    write_repository(without, root=root, source="d.yaml")
    assert not (root / "embed").exists()
    assert (extra / "1/model.py").is_file(), "only the link was ours"


@pytest.mark.parametrize(
    ("text", "limiter", "finding"),
    [
        ('instance_group { rate_limiter { resources { name: "R" } } }', None, "has a rate_limiter, which would not be"),
        ("instance_group { count: 2 }", needing("slots"), "has an instance_group, and embed's rate_limiter needs"),
    ],
)
def test_what_two_files_would_say_of_a_model_is_said_in_one(
    tmp_path: Path, extra: Path, text: str, limiter: Data | None, finding: str
) -> None:
    (extra / "config.pbtxt").write_text(text)
    pools = [{"name": "slots", "count": 1}] if limiter else []
    models = [{"name": "embed", "dir": "embed", "rate_limiter": limiter}]
    spec = load(tmp_path, model("chat"), extra_models=models, rate_limiter=pools)
    with pytest.raises(SpecError, match=finding):
        render_repository(spec, root=tmp_path, source="d.yaml")


def test_an_extra_model_that_is_not_there_is_named(tmp_path: Path, extra: Path) -> None:
    (extra / "1").rename(extra / "one")
    for folder, finding in (("nowhere", "cannot read"), ("embed", "has no version folder")):
        spec = load(tmp_path, model("chat"), extra_models=[{"name": "embed", "dir": folder}])
        with pytest.raises(SpecError, match=finding):
            render_repository(spec, root=tmp_path, source="d.yaml")


def test_the_only_model_is_asked_for_by_name_where_there_are_several(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="pair has the models a, b; this is for a deployment of one"):
        _ = load(tmp_path, model("a"), model("b")).model


def test_a_process_takes_the_cores_and_gpus_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    before = os.sched_getaffinity(0)
    core = max(before)
    try:
        take_place(PlacementSpec(gpus=(1, "MIG-a-b"), mps_thread_percentage=40, cpus=(core,)))
        assert os.sched_getaffinity(0) == {core}
    finally:
        os.sched_setaffinity(0, before)
    assert os.environ == {"CUDA_VISIBLE_DEVICES": "1,MIG-a-b", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40"}
    with pytest.raises(SpecError, match=r"placement.cpus: there is no core 4095 here; there are "):
        take_place(PlacementSpec(cpus=(core, 4095)))


def test_models_that_share_a_resource_must_agree_on_how_much_there_is(tmp_path: Path) -> None:
    def sharing(name: str, count: int) -> Data:
        resources = [{"name": "streams", "count": count}]
        return model(name, admission={"budget": {"shared": {"resources": resources}}})

    assert len(load(tmp_path, sharing("a", 8), sharing("b", 8), model("c")).models) == 3
    with pytest.raises(SpecError, match="shared: streams has the count 8 in a, 9 in b; all must say the same"):
        load(tmp_path, sharing("a", 8), sharing("b", 9))


def test_a_request_that_takes_more_than_there_is_would_never_start(tmp_path: Path) -> None:
    resources = [{"name": "streams", "count": 8, "units": 9}]
    with pytest.raises(SpecError, match=r"units \(9\) for each request are more than count \(8\)"):
        load(tmp_path, model("a", admission={"budget": {"shared": {"resources": resources}}}))
