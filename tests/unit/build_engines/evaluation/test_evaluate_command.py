# SPDX-License-Identifier: Apache-2.0
"""`trireme evaluate` on the committed demo model: against itself, and against what noise has made of it."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from demo_release import DEMO_MODEL, alter_a_byte, write_demo_release
from pydantic import JsonValue
from telling_engine import TellingEngine

from build_engines.evaluation import contestant
from ensemble_configs.releases.promotion import check_evaluation
from ensemble_configs.releases.release_manifest import address, hash_recipe, load_manifest, seal, verify
from serving.engines.seam.clock import VirtualClock
from trireme.commands import run_command

pytestmark = pytest.mark.slow

RECIPE: dict[str, JsonValue] = {
    "name": "demo",
    "format": "int8",
    "quality": {"perplexity_ratio_max": 1.02, "agreement_min": 0.9, "kl_max": 0.01, "accuracy_drop_max": 0.02},
}


def evaluate(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        run_command("evaluate", [str(arg) for arg in args])
    output = capsys.readouterr()
    return int(end.value.code or 0), output.out, output.err


def manifest_fields() -> dict[str, object]:
    return {"recipe": RECIPE, "recipe_sha256": hash_recipe(RECIPE)}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_release(tmp_path_factory.mktemp("base") / "demo", **manifest_fields())


@pytest.fixture
def release(base: Path, tmp_path: Path) -> Path:
    """Make a release in a folder named as a build names it."""
    return Path(shutil.copytree(base, tmp_path / f"demo-int8-{address(base)[:12]}"))


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a few items of some groups, so that a whole evaluation takes a second or two."""
    groups = {("sums", "en"): 4, ("capitals", "zh"): 2, ("sentences", "en"): 2, ("sentences", "hi"): 2}
    groups |= {("stories", "en"): 1, ("retrieval", "128 tokens, depth 50%"): 2}
    return tasks_of(groups, tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write two texts and a sum: something of each limit of the recipe."""
    groups = {("sums", "en"): 1, ("sentences", "en"): 1, ("sentences", "hi"): 1}
    return tasks_of(groups, tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="module")
def one_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tasks_of({("sentences", "en"): 1}, tmp_path_factory.mktemp("tasks"))


def tasks_of(groups: dict[tuple[str, str], int], folder: Path) -> Path:
    """Write the first items of each group, as many as are given."""
    kept = []
    for line in (DEMO_MODEL / "tasks.jsonl").read_text(encoding="utf-8").splitlines():
        where = (json.loads(line)["task"], json.loads(line)["group"])
        if groups.get(where, 0):
            groups[where] -= 1
            kept.append(line)
    file = folder / "tasks.jsonl"
    file.write_text("\n".join(kept), encoding="utf-8")
    return file


def add_noise(release: Path) -> None:
    """Change some weights of each matrix, but no shapes, scales or norms, and seal what has come of it."""
    xml = (release / "engine" / "openvino_model.xml").read_text(encoding="utf-8")
    file = release / "engine" / "openvino_model.bin"
    content, rng = np.fromfile(file, dtype=np.uint8), np.random.default_rng(5)
    matrices = re.findall(r'element_type="u8" shape="\d+, \d\d+" offset="(\d+)" size="(\d+)"', xml)
    assert len(matrices) == 36  # seven in each of five layers, and the embedding
    for offset, size in matrices:
        where = int(offset) + np.flatnonzero(rng.random(int(size)) < 0.05)
        content[where] = rng.integers(0, 256, size=len(where), dtype=np.uint8)
    content.tofile(file)
    seal(release, load_manifest(release))


def test_a_release_is_as_good_as_itself_and_its_manifest_says_so(
    base: Path, release: Path, few: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = evaluate(capsys, release, "--against", base, "--tasks", few, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["passed"] is True
    assert found["release_address"] == found["base_address"] == address(base)
    assert found["num_too_long"] == 0
    values: dict[str, set[float]] = {figure["metric"]: set() for figure in found["figures"]}
    for figure in found["figures"]:
        values[figure["metric"]].add(figure["value"])
    assert values == {
        "perplexity_ratio": {1.0}, "kl": {0.0}, "agreement": {1.0}, "exact_match": {1.0}, "accuracy_drop": {0.0},
    }  # fmt: skip
    right = [figure["candidate"] for figure in found["figures"] if figure["metric"] == "accuracy_drop"]
    assert right == [1.0, 1.0, 1.0]  # sums, capitals, retrieval
    perplexity = {f["group"]: f["candidate"] for f in found["figures"] if f["metric"] == "perplexity_ratio"}
    assert perplexity["en"] == pytest.approx(1.32, abs=0.02)  # of few tasks; 1.31 in the demo model's README

    assert not release.exists()  # it was named for its address
    (moved,) = release.parent.glob("demo-int8-*")
    manifest = verify(moved)
    assert moved.name == f"demo-int8-{address(moved)[:12]}"
    assert address(moved) != address(base)
    assert address(moved)[:12] in err
    assert manifest.evaluated_against is not None
    assert manifest.evaluated_against.address == address(base)
    results = {(result.task, result.group, result.metric): result for result in manifest.evaluation}
    assert results["sums", "en", "accuracy_drop"].passed is True
    assert results["sums", "en", "accuracy"].baseline == 1.0
    assert results["sentences", "hi", "perplexity_ratio"].interval == (1.0, 1.0)
    assert check_evaluation(manifest) == []


def test_a_damaged_release_fails_and_is_refused_from_then_on(
    base: Path, release: Path, few: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_noise(release)
    code, out, _ = evaluate(capsys, release, "--against", base, "--tasks", few)
    assert code == 1
    assert "FAILED" in out
    (moved,) = release.parent.glob("demo-int8-*")
    manifest = load_manifest(moved)
    failed = {result.metric for result in manifest.evaluation if result.passed is False}
    assert {"perplexity_ratio", "kl", "agreement"} <= failed
    (finding,) = check_evaluation(manifest)
    assert finding.check == "evaluation"
    assert "--override" in finding.next_step


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("--override", "--reason", "x"), "--override needs --reason and --who"),
        (("--override", "--reason", " ", "--who", "me"), "--override needs --reason and --who"),
        (("--reason", "x"), "--reason and --who belong to --override"),
        (("--override", "--reason", "x", "--who", "me", "--limit", "1"), "takes a whole evaluation"),
        (("--override", "--reason", "x", "--who", "me", "--no-record"), "takes a whole evaluation"),
    ],
)
def test_an_override_without_a_name_or_a_whole_evaluation_is_refused(
    base: Path, few: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], complaint: str
) -> None:
    code, _, err = evaluate(capsys, base, "--against", base, "--tasks", few, *args)
    assert code == 2
    assert complaint in err


def test_a_limit_that_the_items_say_nothing_about_is_refused_before_anything_is_asked(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"task": "t", "kind": "exact", "prompt": "?", "expected": "!"}\n')
    code, _, err = evaluate(capsys, base, "--against", base, "--tasks", tmp_path / "tasks.jsonl")
    assert code == 2
    assert "the recipe has perplexity_ratio_max, and nothing was found about it" in err


def test_an_altered_release_is_not_evaluated(
    base: Path, release: Path, few: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alter_a_byte(release / "engine" / "openvino_model.bin")
    code, _, err = evaluate(capsys, release, "--against", base, "--tasks", few)
    assert code == 2
    assert "file engine/openvino_model.bin" in err


def test_another_kv_cache_is_compared_and_nothing_is_recorded(
    base: Path, three: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = address(base)
    options = ("--limit", 1, "--kv-cache", "u8", "--against-kv-cache", "f16")
    code, out, _ = evaluate(capsys, base, "--against", base, "--tasks", three, "--json", *options)
    assert code == 0
    found = json.loads(out)
    assert {figure["num_items"] for figure in found["figures"]} == {1}
    assert {figure["interval"] for figure in found["figures"]} == {None}
    divergences = [figure["value"] for figure in found["figures"] if figure["metric"] == "kl"]
    assert len(divergences) == 2
    assert all(0 < value < 0.01 for value in divergences)
    assert address(base) == before


def test_a_deployment_that_computes_in_f32_is_scored_in_f32(
    tmp_path: Path, one_text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deployments = []
    for mode in ("accuracy", "performance"):
        deployments.append(tmp_path / f"{mode}.yaml")
        engine = f"{{provider: openvino, dir: {DEMO_MODEL / 'openvino/target'}, execution_mode: {mode}}}"
        deployments[-1].write_text(f"name: {mode}\ntokenizer: {{dir: {DEMO_MODEL / 'target'}}}\nengine: {engine}\n")
    accurate, fast = deployments
    options = ("--tasks", one_text, "--json")
    divergences = {}
    for other in (accurate, fast):
        _, out, _ = evaluate(capsys, accurate, "--against", other, *options)
        found = json.loads(out)
        assert found["computed_in"] == "f32"
        divergences[other.stem] = [figure["value"] for figure in found["figures"] if figure["metric"] == "kl"]
    assert not any(divergences["accuracy"])
    assert all(value > 0 for value in divergences["performance"]), "its KV cache, at least, is rounded"
    code, _, err = evaluate(capsys, accurate, "--against", fast, *options, "--kv-cache", "u8")
    assert code == 2
    assert "with execution_mode: accuracy the KV cache is f32; leave it out" in err


SIMULATED = """
name: toy
tokenizer: {{dir: {tokenizer}}}
engine: {{provider: simulated, step_ms: 0, error_rate: {error_rate}}}
"""


def test_any_engine_behind_the_seam_can_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, error_rate in (("base", 0.0), ("worse", 0.2)):
        text = SIMULATED.format(tokenizer=DEMO_MODEL / "target", error_rate=error_rate)
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "tasks.jsonl").write_text(
        "".join(
            json.dumps({"task": "t", "kind": kind, "prompt": f"prompt {number}", "expected": "x"}) + "\n"
            for kind in ("open", "text")
            for number in range(5)
        )
    )
    args = ("--tasks", tmp_path / "tasks.jsonl", "--json")
    _, out, _ = evaluate(capsys, tmp_path / "base.yaml", "--against", tmp_path / "base.yaml", *args)
    same = {name: figure["value"] for name, figure in json.loads(out)["worst"].items()}
    assert same == {"agreement": 1.0, "exact_match": 1.0}, "an engine without logits"
    _, out, _ = evaluate(capsys, tmp_path / "worse.yaml", "--against", tmp_path / "base.yaml", *args)
    assert json.loads(out)["worst"]["agreement"]["value"] < 0.9
    monkeypatch.setattr(contestant, "create_engine", lambda spec: TellingEngine(spec, VirtualClock()))
    _, out, _ = evaluate(capsys, tmp_path / "base.yaml", "--against", tmp_path / "base.yaml", *args)
    same = {name: figure["value"] for name, figure in json.loads(out)["worst"].items()}
    assert same == {"perplexity_ratio": 1.0, "kl": 0.0, "agreement": 1.0, "exact_match": 1.0}


def test_different_tokenizers_are_refused(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = json.loads((DEMO_MODEL / "target" / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["added_tokens"][0]["lstrip"] = True
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "toy.yaml").write_text(SIMULATED.format(tokenizer=tmp_path, error_rate=0))
    (tmp_path / "tasks.jsonl").write_text('{"task": "t", "kind": "open", "prompt": "x"}\n')
    args = (base, "--against", tmp_path / "toy.yaml", "--tasks", tmp_path / "tasks.jsonl", "--no-record")
    code, _, err = evaluate(capsys, *args)
    assert code == 2
    assert "different tokenizers" in err


def test_no_column_is_lost_where_the_tables_go_into_a_file(
    base: Path, release: Path, three: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = evaluate(capsys, release, "--against", base, "--tasks", three, "--no-record")
    assert code == 0
    (heading,) = [line for line in out.splitlines() if "accuracy, base" in line]
    for column in ("items", "agreed", "same answers", "release", "lost"):
        assert column in heading
    assert ": passed, computed in " in out
