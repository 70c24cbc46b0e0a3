# SPDX-License-Identifier: Apache-2.0
"""`trireme render --diff`: what would be loaded anew, why, and how much memory that takes meanwhile."""

import json
from pathlib import Path

import pytest
import yaml

from ensemble_configs.changes.deployment_diff import DeploymentDiff, Kind, compare
from ensemble_configs.spec.deployment import DeploymentSpec, MachineSpec, load_deployment, override_triton
from ensemble_configs.spec.model_names import MODELS, PYTHON_MODELS
from trireme.commands import run_command

GIB = 2**30
STEPS = ("preprocessing", "tensorrt_llm", "postprocessing")
Data = dict[str, object]


def model(name: str = "chat", engine: Data | None = None, **more: object) -> Data:
    sizes = {"provider": "simulated", "weight_bytes": GIB, "kv_bytes_per_token": 0}
    return {"name": name, "tokenizer": {"dir": "/tok"}, "engine": sizes | (engine or {}), **more}


def spec(*models: Data, **more: object) -> DeploymentSpec:
    return DeploymentSpec.model_validate({"name": "d", "models": list(models), **more})


def release(number: int) -> Data:
    return {key: value for key, value in model().items() if key != "name"} | {"release": number}


def kinds(diff: DeploymentDiff) -> dict[str, tuple[Kind, tuple[int, ...], tuple[int, ...]]]:
    return {change.name: (change.kind, change.loaded, change.dropped) for change in diff.changes}


def test_nothing_changes_nothing() -> None:
    assert compare(spec(model()), spec(model())) == DeploymentDiff((), (), ())


def test_a_model_comes_and_another_goes() -> None:
    found = kinds(compare(spec(model("a"), model("b")), spec(model("b"), model("c"))))
    assert found == {
        **{f"c_{step}": (Kind.ADDED, (1,), ()) for step in MODELS},
        **{f"a_{step}": (Kind.REMOVED, (), (1,)) for step in MODELS},
    }


def test_a_release_more_touches_no_other() -> None:
    found = kinds(compare(spec(model()), spec(model(other_releases=[release(2)]))))
    steps = {f"chat_{step}": (Kind.VERSIONS, (2,), ()) for step in STEPS}
    # The graph's steps named no version while there was one, and name it now.
    assert found == steps | {"chat_ensemble_graph": (Kind.RELOADED, (1,), ())}


def test_a_promotion_loads_only_what_clients_call() -> None:
    before = spec(model(other_releases=[release(2)]))
    after = spec(model(release=2, other_releases=[release(1)]))
    assert kinds(compare(before, after)) == {
        "chat_ensemble": (Kind.VERSIONS, (2,), ()),
        "chat_tensorrt_llm_bls": (Kind.VERSIONS, (2,), ()),
        "chat_ensemble_graph": (Kind.RELOADED, (2,), (1,)),
    }


def test_another_transaction_policy_loads_what_starts_generations_anew() -> None:
    diff = compare(spec(model()), spec(model(decoupled=False)))
    starting = ("ensemble", "tensorrt_llm", "tensorrt_llm_bls")
    assert kinds(diff) == {f"chat_{step}": (Kind.RELOADED, (1,), ()) for step in starting}


def test_a_field_of_a_release_loads_that_release_everywhere_and_is_named() -> None:
    diff = compare(
        spec(model(other_releases=[release(2)])), spec(model("chat", {"seed": 5}, other_releases=[release(2)]))
    )
    assert kinds(diff) == {f"chat_{step}": (Kind.RELOADED, (1,), ()) for step in PYTHON_MODELS}
    assert {change.why for change in diff.changes} == {("release 1: engine.seed 0 -> 5",)}
    assert diff.changed_releases == ("chat release 1",)


def test_more_tokenizers_leave_those_that_run() -> None:
    found = kinds(compare(spec(model()), spec(model(instances={"preprocessing": 3}))))
    assert found == {"chat_preprocessing": (Kind.SCALED, (), ())}


def test_another_part_in_the_rate_limiter_starts_the_instances_anew() -> None:
    pools = [{"name": "slots", "count": 2}]
    limited = {"resources": [{"name": "slots"}]}
    before = spec(model(rate_limiter=limited), rate_limiter=pools)
    after = spec(model(rate_limiter=limited | {"priority": 2}), rate_limiter=pools)
    starting = ("chat_tensorrt_llm", "chat_ensemble", "chat_tensorrt_llm_bls")
    assert kinds(compare(before, after)) == dict.fromkeys(starting, (Kind.RESTARTED, (1,), ()))
    assert compare(before, after).restarts == ()
    assert compare(spec(model()), after).restarts == (
        "--rate-limit=execution_count comes",
        "--rate-limit-resource=slots:2 comes",
    )


def test_a_queue_loads_every_version_of_the_steps_that_have_one() -> None:
    found = kinds(compare(spec(model()), spec(model(triton_queue={}))))
    assert set(found) == {f"chat_{step}" for step in PYTHON_MODELS if step != "postprocessing"}
    assert set(found.values()) == {(Kind.RELOADED, (1,), ())}


# From the command line


def ask(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    with pytest.raises(SystemExit) as end:
        run_command("render", list(args))
    assert not end.value.code
    return capsys.readouterr().out


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Return the paths of an old and a new deployment, where host memory is 2.5 GiB and an engine takes 1 GiB."""
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    machine = {"host_memory_gib": 2.5}
    old.write_text(yaml.safe_dump({"name": "d", "models": [model("a"), model("b")], "machine": machine}))
    new.write_text(yaml.safe_dump({"name": "d", "models": [model("a"), model("b", {"seed": 2})], "machine": machine}))
    return str(old), str(new)


def test_what_is_loaded_beside_itself_has_to_fit(capsys: pytest.CaptureFixture[str], files: tuple[str, str]) -> None:
    old, new = files
    out = ask(capsys, "--deployment", new, "--diff", old)
    assert "b_tensorrt_llm: loaded anew (loads 1)\n    release 1: engine.seed 0 -> 2\n" in out
    assert "a_" not in out
    assert "host: 2.00 GiB now, 2.00 GiB then, 3.00 GiB between, of 2.50 GiB; 0.50 GiB too much: roll it out" in out
    [cost] = json.loads(ask(capsys, "--deployment", new, "--diff", old, "--json"))["memory"]
    assert (cost["peak_bytes"], cost["missing_bytes"]) == (3 * GIB, GIB // 2)
    assert ask(capsys, "--deployment", new, "--diff", new) == "nothing changes\n"


@pytest.mark.parametrize("more", [["--helm"], ["--out", "models"]])
def test_two_wishes_at_once_are_refused(
    capsys: pytest.CaptureFixture[str], files: tuple[str, str], more: list[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        run_command("render", ["--deployment", files[1], "--diff", files[0], *more])
    assert end.value.code == 2
    assert "give one of --diff, --helm, --chart and --out" in capsys.readouterr().err


def test_helm_gets_the_deployment_and_what_follows_from_it(
    capsys: pytest.CaptureFixture[str], files: tuple[str, str], tmp_path: Path
) -> None:
    values = yaml.safe_load(ask(capsys, "--deployment", files[1], "--helm"))
    assert values["ports"] == {"http": 8000, "grpc": 8001, "metrics": 8002}
    assert list(values["servers"]) == ["a", "b"]
    whole = load_deployment(Path(files[1]))
    for server, model in zip(values["servers"].values(), whole.models, strict=True):
        assert [each["tritonNames"] for each in server["models"]] == [list(model.triton_names)]
        assert (server["replicas"], server["nodes"], server["gpus"]) == (1, 1, 0)
        (tmp_path / "again.yaml").write_text(server["deployment"])
        again = load_deployment(tmp_path / "again.yaml")
        assert again.triton.host == "0.0.0.0", "nobody could reach a pod's loopback"
        assert override_triton(again, host="127.0.0.1") == whole.model_copy(
            update={"models": (model,), "machine": MachineSpec()}
        )


def test_names_that_kubernetes_would_not_tell_apart_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = {"tokenizer": {"dir": "/t"}, "engine": {"provider": "simulated"}}
    path = tmp_path / "d.yaml"
    path.write_text(yaml.safe_dump({"name": "d", "models": [{"name": "a_b", **model}, {"name": "a_b_", **model}]}))
    with pytest.raises(SystemExit):
        run_command("render", ["--deployment", str(path), "--helm"])
    assert "two servers would be called a-b in Kubernetes" in capsys.readouterr().err
