# SPDX-License-Identifier: Apache-2.0
"""`trireme plan --deployment`: what fits together, with what KV cache, and what a second version beside it costs."""

import json
from pathlib import Path

import openvino
import pytest
import yaml
from demo_release import write_demo_release, write_gpu_release

from build_engines.checkpoint.known_models import known_models
from build_engines.planner.deployment_plan import DeploymentPlan, plan_deployment
from build_engines.planner.engine_memory import memory_of
from ensemble_configs.releases.release_manifest import load_manifest
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.deployment_checks import unbounded_caches
from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from trireme.base.errors import SpecError
from trireme.base.project_files import CODE_ROOT
from trireme.commands import run_command

DEMO = CODE_ROOT / "examples/demo_model"
GIB = 2**30
Data = dict[str, object]


def model(name: str, *, weights_gib: float, num_blocks: int = 100, **more: object) -> Data:
    """Return a model with KV blocks of a MiB and a longest sequence of 16 blocks."""
    engine = {
        "provider": "simulated", "weight_bytes": int(weights_gib * GIB), "kv_bytes_per_token": 2**16,
        "num_kv_blocks": num_blocks, "max_seq_len": 256,
    }  # fmt: skip
    return {"name": name, "tokenizer": {"dir": "/tok"}, "engine": engine, **more}


def deployment(*models: Data) -> DeploymentSpec:
    return DeploymentSpec.model_validate({"name": "d", "models": list(models)})


def plan(*models: Data, host_gib: float) -> DeploymentPlan:
    return plan_deployment(deployment(*models), {"host": int(host_gib * GIB)}, num_gpus=0)


def test_models_fit_together_or_not_by_the_byte() -> None:
    pair = (model("a", weights_gib=1), model("b", weights_gib=2, num_blocks=1024))
    exact = plan(*pair, host_gib=4 + 100 / 1024)
    assert (exact.problems, exact.devices[0].free_bytes) == ((), 0)
    assert exact.devices[0].users == ["a release 1", "b release 1"]
    assert [part.kv_tokens for part in exact.engines] == [1600, 16384]
    short = plan_deployment(deployment(*pair), {"host": exact.devices[0].used_bytes - 1}, num_gpus=0)
    [problem] = short.problems
    assert "a release 1, b release 1 take 4.10 GiB" in problem
    assert "lower engine.num_kv_blocks" in problem


def test_what_does_not_fit_even_without_caches_is_told_what_else_to_do() -> None:
    [problem] = plan(model("a", weights_gib=3), model("b", weights_gib=3), host_gib=4).problems
    assert "not even without KV caches; place a model elsewhere, quantize it, or load it on_demand" in problem


def test_a_second_version_fits_or_says_how_small_both_would_have_to_be() -> None:
    one = model("a", weights_gib=1, num_blocks=1024)
    [fits] = plan(one, host_gib=4).second_versions
    assert (fits.num_bytes, fits.missing_bytes, fits.fitting_kv_blocks) == (2 * GIB, 0, None)
    [smaller] = plan(one, host_gib=3).second_versions
    assert (smaller.missing_bytes, smaller.fitting_kv_blocks) == (GIB, 512)
    with_that = model("a", weights_gib=1, num_blocks=512)
    assert plan(with_that, host_gib=3).second_versions[0].missing_bytes == 0
    [never] = plan(one, host_gib=2).second_versions
    assert (never.missing_bytes, never.fitting_kv_blocks) == (2 * GIB, None)


def test_releases_that_are_loaded_beside_it_count() -> None:
    other = {key: value for key, value in model("x", weights_gib=1).items() if key != "name"} | {"release": 2}
    found = plan(model("a", weights_gib=1, other_releases=[other]), host_gib=10)
    assert found.devices[0].users == ["a release 1", "a release 2"]
    assert found.devices[0].used_bytes == 2 * (GIB + 100 * 2**20)


def test_engines_that_are_loaded_in_turns_take_their_pool() -> None:
    turns = {"pool_mib": 2048, "memory_mib": 1200}
    pair = [model(name, weights_gib=1, on_demand=turns) for name in ("a", "b")]
    found = plan(*pair, model("c", weights_gib=1), host_gib=3.2)
    assert found.problems == ()
    assert found.devices[0].users == ["c release 1", "pool memory"]
    assert [second.model for second in found.second_versions] == ["c"]
    small = [model(name, weights_gib=1, on_demand=turns | {"memory_mib": 1000}) for name in ("a", "b")]
    assert plan(*small, host_gib=3).problems[0] == (
        "a, release 1: takes 1.10 GiB, and on_demand.memory_mib says 1000; set it to 1124"
    )
    with pytest.raises(ValueError, match="pool memory is said to be 2048 by a, 4096 by b; say the same"):
        deployment(pair[0], model("b", weights_gib=1, on_demand=turns | {"pool_mib": 4096}))


def test_a_cache_that_holds_no_sequence_is_a_problem() -> None:
    assert plan(model("a", weights_gib=1, num_blocks=15), host_gib=10).problems == (
        "a release 1: there is no room for a KV cache of one sequence of 256 tokens",
    )


# On GPUs


def gpu_model(release: Path, name: str, **more: object) -> Data:
    of_engine = {key: more.pop(key) for key in ("num_kv_blocks", "tp_size") if key in more}
    engine: Data = {"provider": "tensorrt"} | of_engine
    return {"name": name, "release_dir": str(release), "engine": engine, **more}


def test_caches_that_do_not_say_how_large_they_are_share_what_is_left(tmp_path: Path) -> None:
    sizes = {"weight_bytes_per_rank": 10 * GIB, "workspace_bytes": GIB, "kv_bytes_per_token": 2**17}
    release = write_gpu_release(tmp_path / "r", **sizes)
    two = deployment(gpu_model(release, "a"), gpu_model(release, "b"))
    assert [clash.split(":")[0] for clash in unbounded_caches(two.models)] == ["a", "b"]
    found = plan_deployment(two, {"GPU 0": 40 * GIB}, num_gpus=1)
    assert found.problems == ()
    block_bytes = 32 * 2**17
    assert [part.num_kv_blocks for part in found.engines] == [int(0.9 * 18 * GIB / 2 / block_bytes)] * 2
    assert all(part.is_proposed for part in found.engines)
    apart = deployment(gpu_model(release, "a"), gpu_model(release, "b", placement={"gpus": [1]}))
    assert list(unbounded_caches(apart.models)) == []
    alone = plan_deployment(apart, {"GPU 0": 40 * GIB, "GPU 1": 40 * GIB}, num_gpus=2)
    assert [part.num_kv_blocks for part in alone.engines] == [int(0.9 * 29 * GIB / block_bytes)] * 2
    [absent] = plan_deployment(apart, {"GPU 0": 40 * GIB}, num_gpus=1).problems[:1]
    assert absent == "b release 1: is placed on GPU 1, and there are 1 GPUs; change placement.gpus"


def test_each_rank_of_an_engine_takes_its_part_of_a_gpu_of_its_own(tmp_path: Path) -> None:
    release = write_gpu_release(tmp_path / "r", tp_size=2, world_size=2, weight_bytes_per_rank=GIB)
    spec = deployment(gpu_model(release, "a", tp_size=2, num_kv_blocks=64, placement={"gpus": [3, 1]}))
    found = plan_deployment(spec, {"GPU 1": 8 * GIB, "GPU 3": 8 * GIB}, num_gpus=4)
    assert found.problems == ()
    assert [(device.name, device.used_bytes) for device in found.devices] == [
        (name, found.engines[0].num_bytes) for name in ("GPU 1", "GPU 3")
    ]


# What an engine takes


def test_an_engine_without_a_manifest_takes_what_that_of_its_release_does(tmp_path: Path) -> None:
    release = write_demo_release(tmp_path / "release")
    manifest = load_manifest(release)
    plain = memory_of(OpenVinoEngineSpec(provider="openvino", dir=DEMO / "openvino/target"))
    assert plain.weight_bytes == (DEMO / "openvino/target/openvino_model.bin").stat().st_size
    of_release = memory_of(OpenVinoEngineSpec(provider="openvino", dir=release / "engine"))
    assert of_release.kv_bytes_per_token == manifest.kv_bytes_per_token
    assert of_release.source == f"manifest of {manifest.name}"


@pytest.mark.parametrize("precision", ["u8", "u4", "f16", "f32"])
def test_the_kv_cache_is_as_large_as_openvino_makes_it(precision: str) -> None:
    import openvino_genai  # noqa: PLC0415 - takes a second

    num_blocks = 512
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.num_kv_blocks = num_blocks
    # The f32 cache is that of the mode which computes in f32 throughout.
    of_engine = {"execution_mode": "accuracy"} if precision == "f32" else {"kv_cache_precision": precision}
    of_pipeline = (
        {"EXECUTION_MODE_HINT": "ACCURACY"}
        if precision == "f32"
        else {"KV_CACHE_PRECISION": getattr(openvino.Type, precision)}
    )
    pipeline = openvino_genai.ContinuousBatchingPipeline(str(DEMO / "openvino/target"), scheduler, "CPU", of_pipeline)
    pipeline.add_request(0, openvino.Tensor([[5, 6, 7]]), openvino_genai.GenerationConfig(max_new_tokens=2))
    while pipeline.has_non_finished_requests():
        pipeline.step()
    spec = OpenVinoEngineSpec.model_validate({"provider": "openvino", "dir": DEMO / "openvino/target"} | of_engine)
    real = pipeline.get_metrics().kv_cache_size_in_bytes
    real /= 2 if precision == "u4" else 1  # it counts the numbers, and a byte for each
    assert memory_of(spec).kv_bytes(num_blocks) == pytest.approx(real, rel=0.02)


def test_a_checkpoint_is_divided_among_its_ranks(tmp_path: Path) -> None:
    folder = DEMO / "target"
    whole, half = (memory_of(PyTorchEngineSpec(provider="pytorch", dir=folder, tp_size=tp)) for tp in (1, 2))
    size = (folder / "model.safetensors").stat().st_size
    assert whole.weight_bytes == size
    assert size / 2 < half.weight_bytes < 0.55 * size
    assert whole.kv_bytes_per_token == 2 * half.kv_bytes_per_token == 2 * 5 * 2 * 64 * 2
    with pytest.raises(SpecError, match=r"there is no folder .*nowhere; build or pull the release"):
        memory_of(PyTorchEngineSpec(provider="pytorch", dir=tmp_path / "nowhere"))


def test_states_of_linear_attention_are_counted_for_every_sequence_of_a_deployment(tmp_path: Path) -> None:
    config = known_models()["qwen3-next-80b-a3b"].config
    (tmp_path / "config.json").write_text(json.dumps(config))
    few, many = (
        memory_of(PyTorchEngineSpec(provider="pytorch", dir=tmp_path, tp_size=2, max_num_seqs=number))
        for number in (10, 110)
    )
    assert many.workspace_bytes - few.workspace_bytes == 100 * 39_518_208 // 2
    assert many.kv_bytes_per_token == few.kv_bytes_per_token == 12 * 1024  # one of two KV heads, 12 layers


# From the command line


def ask(capsys: pytest.CaptureFixture[str], path: Path, *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        run_command("plan", ["--deployment", str(path), *args])
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "d.yaml"
    file.write_text(yaml.safe_dump({"name": "d", "models": [model("a", weights_gib=1), model("b", weights_gib=2)]}))
    return file


def test_it_says_what_fits_and_fails_where_something_does_not(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    code, out, _ = ask(capsys, path, "--host-memory-gib", "4")
    assert code == 0
    assert "host: 3.20 GiB of 4.00 GiB, 0.80 GiB free (a release 1, b release 1)" in out
    assert "a second version of a beside it: 1.10 GiB, 0.29 GiB too much; roll it out on a second server" in out
    code, out, _ = ask(capsys, path, "--host-memory-gib", "3")
    assert code == 2
    assert "does not fit: host: a release 1, b release 1 take 3.20 GiB" in out


def test_the_machine_of_the_deployment_counts_where_no_option_does(
    capsys: pytest.CaptureFixture[str], path: Path
) -> None:
    path.write_text(path.read_text() + "machine: {host_memory_gib: 100}\n")
    assert json.loads(ask(capsys, path, "--json")[1])["devices"][0]["memory_bytes"] == 100 * GIB
    asked = json.loads(ask(capsys, path, "--json", "--host-memory-gib", "4")[1])
    assert (asked["fits"], asked["devices"][0]["memory_bytes"]) == (True, 4 * GIB)


def test_options_about_speed_are_refused_and_not_ignored(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    for option in ("--isl", "--top", "--format"):
        code, _, err = ask(capsys, path, option, "fp8" if option == "--format" else "5")
        assert (code, f"{option} says nothing about a deployment's memory" in err) == (2, True)


def test_two_questions_at_once_and_none_are_refused(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    assert ask(capsys, path, "llama-3.1-8b")[0] == 2
    with pytest.raises(SystemExit):
        run_command("plan", [])
    assert "name a model, such as llama-3.1-70b, or a deployment file" in capsys.readouterr().err


def vllm(**changes: object) -> VllmEngineSpec:
    return VllmEngineSpec.model_validate({"provider": "vllm", "dir": DEMO / "target", "kv_block_tokens": 32} | changes)


def test_an_engine_of_vllm_takes_its_checkpoint_and_the_cache_that_it_is_given() -> None:
    memory = memory_of(vllm())
    assert memory.weight_bytes == (DEMO / "target/model.safetensors").stat().st_size
    assert memory.kv_bytes(1) == 32 * 2 * 5 * 2 * 64 * 2  # tokens, K and V, layers, heads, head size, bf16
    assert memory_of(vllm(tp_size=2)).kv_bytes(1) == memory.kv_bytes(1) / 2
    engine: Data = {"provider": "vllm", "dir": str(DEMO / "target"), "device": "cpu", "kv_block_tokens": 32}
    asked: Data = {
        "name": "a",
        "tokenizer": {"dir": "/tok"},
        "engine": engine | {"kv_cache_bytes": 10 * memory.kv_bytes(1)},
    }
    [part] = plan(asked, host_gib=1).engines
    assert (part.num_kv_blocks, part.is_proposed, part.devices) == (10, False, ("host",))


def test_engines_of_vllm_that_share_a_gpu_say_how_much_of_it_they_take() -> None:
    engine: Data = {"provider": "vllm", "dir": "/model"}
    models: list[Data] = [{"name": name, "tokenizer": {"dir": "/tok"}, "engine": engine} for name in ("a", "b")]
    assert len(list(unbounded_caches(deployment(*models).models))) == 2
    bounded: list[Data] = [each | {"engine": engine | {"num_kv_blocks": 100}} for each in models]
    assert list(unbounded_caches(deployment(*bounded).models)) == []
