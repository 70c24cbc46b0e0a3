# SPDX-License-Identifier: Apache-2.0
"""A deployment goes from release to release by steps, each of which could be started by itself."""

from pathlib import Path

import pytest

from ensemble_configs.changes.deployment_diff import Kind, compare
from ensemble_configs.changes.release_changes import (
    candidate_from,
    model_named,
    promoted,
    release_of,
    with_candidate,
    without_release,
    without_trials,
)
from ensemble_configs.render.model_configs import render_configs
from ensemble_configs.render.repository import render_repository
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.model_spec import as_release
from trireme.base.errors import SpecError

TOKENIZER = {"dir": Path("/models/tokenizer")}


def deployment(**more: object) -> DeploymentSpec:
    return DeploymentSpec.of_one(
        name="d", tokenizer=TOKENIZER, engine={"provider": "simulated", "seed": 1, "max_num_seqs": 8}, **more
    )


def with_second(spec: DeploymentSpec, folder: Path, text: str = "engine: {seed: 2}") -> DeploymentSpec:
    path = folder / "candidate.yaml"
    path.write_text(text)
    return with_candidate(spec, spec.model, candidate_from(path, spec.model))


def kinds(old: DeploymentSpec, new: DeploymentSpec) -> dict[str, tuple[Kind, tuple[int, ...], tuple[int, ...]]]:
    return {change.name: (change.kind, change.loaded, change.dropped) for change in compare(old, new).changes}


def test_a_candidate_says_what_differs_and_has_the_next_number(tmp_path: Path) -> None:
    new = with_second(deployment(), tmp_path).model
    assert (new.release, new.canary) == (1, 2)
    second = release_of(new, 2)
    assert second.engine.seed == 2  # type: ignore[union-attr]
    assert second.engine.max_num_seqs == 8
    assert as_release(second).model_copy(update={"release": 1, "engine": new.engine}) == as_release(new)


def test_a_number_that_was_given_is_not_given_again(tmp_path: Path) -> None:
    path = tmp_path / "candidate.yaml"
    path.write_text("engine: {seed: 3}")
    model = deployment().model
    assert [candidate_from(path, model, above=above).release for above in (0, 1, 7)] == [2, 2, 8]


def test_another_provider_takes_nothing_of_the_old_ones_engine(tmp_path: Path) -> None:
    spec = with_second(deployment(), tmp_path, "engine: {provider: openvino, dir: ov}")
    engine = release_of(spec.model, 2).engine
    assert (engine.provider, getattr(engine, "dir", None)) == ("openvino", tmp_path / "ov")


def test_a_built_release_brings_its_own_folders(tmp_path: Path) -> None:
    stable = DeploymentSpec.of_one(
        name="d",
        release_dir=Path("/releases/one"),
        engine={"provider": "openvino", "max_num_seqs": 4},
        tokenizer={"add_special_tokens": False},
    )
    candidate = candidate_from(tmp_path, stable.model)
    assert candidate.release_dir == tmp_path
    assert getattr(candidate.engine, "dir", None) == tmp_path / "engine"
    assert candidate.tokenizer.dir == tmp_path / "tokenizer"
    assert (candidate.engine.max_num_seqs, candidate.tokenizer.add_special_tokens) == (4, False)


def test_a_rollout_moves_only_what_must_move(tmp_path: Path) -> None:
    first = deployment()
    added = with_second(first, tmp_path)
    loads = (Kind.VERSIONS, (2,), ())
    assert kinds(first, added) == {
        "preprocessing": loads,
        "tensorrt_llm": loads,
        "postprocessing": loads,
        "ensemble_canary": (Kind.ADDED, (2,), ()),
        "ensemble_graph": (Kind.RELOADED, (1,), ()),  # it names its steps' version now; it has no process
    }
    taken = promoted(added, added.model, 2)
    assert (taken.model.release, taken.model.canary) == (2, 2)
    assert {name: change for name, change in kinds(added, taken).items() if name != "ensemble_graph"} == {
        "ensemble": loads,
        "tensorrt_llm_bls": loads,
    }
    alone = without_trials(taken, taken.model)
    assert kinds(taken, alone) == {"ensemble_canary": (Kind.REMOVED, (), (2,))}
    after = without_release(alone, alone.model, 1)
    drops = (Kind.VERSIONS, (), (1,))
    assert {name: change for name, change in kinds(alone, after).items() if name != "ensemble_graph"} == dict.fromkeys(
        ["preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls"], drops
    )
    assert after.model.other_releases == ()


def test_a_rollback_leaves_what_was(tmp_path: Path) -> None:
    first = deployment()
    added = with_second(first, tmp_path)
    assert without_release(added, added.model, 2) == first
    assert without_release(first, first.model, 2) == first


def test_steps_said_twice_change_nothing(tmp_path: Path) -> None:
    added = with_second(deployment(), tmp_path)
    assert with_candidate(added, added.model, release_of(added.model, 2)) == added
    taken = promoted(added, added.model, 2)
    assert promoted(taken, taken.model, 2) == taken
    alone = without_trials(taken, taken.model)
    assert without_trials(alone, alone.model) == alone


def test_the_candidate_has_the_tensors_and_the_adapter_of_ensemble(tmp_path: Path) -> None:
    spec = with_second(deployment(), tmp_path)
    configs = render_configs(spec.model, spec.triton, source="a test")
    stable, canary = (configs[name].splitlines() for name in ("ensemble", "ensemble_canary"))
    differing = [(one, other) for one, other in zip(stable, canary, strict=True) if one != other]
    assert [one.strip() for one, _ in differing] == ['name: "ensemble"', "versions: [1]"]
    assert [other.strip() for _, other in differing] == ['name: "ensemble_canary"', "versions: [2]"]
    files = render_repository(spec, root=tmp_path, source="a test")
    assert {path.parts[1] for path in files if path.parts[0] == "ensemble_canary"} == {"config.pbtxt", "2"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("engine: {seed: x}", "engine.seed"),
        ("engin: {seed: 2}", "did you mean engine"),
        ("- 1", "must hold the fields"),
        ("a: [", "cannot read"),
        ("release: 1", "different numbers"),
    ],
)
def test_a_wrong_candidate_is_refused_by_name(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        with_second(deployment(), tmp_path, text)


def test_what_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    spec = deployment()
    with pytest.raises(SpecError, match="no model other"):
        model_named(spec, "other")
    with pytest.raises(SpecError, match="no release 7"):
        promoted(spec, spec.model, 7)
    with pytest.raises(SpecError, match="stable one"):
        without_release(spec, spec.model, 1)
    with pytest.raises(SpecError, match="cannot read"):
        candidate_from(tmp_path / "none.yaml", spec.model)
    added = with_second(spec, tmp_path)
    with pytest.raises(SpecError, match="candidate 2 already"):
        with_candidate(added, added.model, candidate_from(tmp_path / "candidate.yaml", added.model))
    taken = without_trials(promoted(added, added.model, 2), promoted(added, added.model, 2).model)
    with pytest.raises(SpecError, match="must be above the stable release's"):
        with_candidate(taken, taken.model, release_of(taken.model, 1))
    with pytest.raises(SpecError, match="endpoints"):
        with_second(deployment(endpoints=("tensorrt_llm_bls",)), tmp_path)
