# SPDX-License-Identifier: Apache-2.0
"""The costs and gains of quantization, on the demo model: size, quality by the gate's own figures, and speed.

`python -m benchmarks.quantization --help`. It takes releases that `trireme build` made;
`documents.quantization_page` writes `docs/quantization.md` from the result. Speed is measured in rounds, each
release once a round, so that what else the machine does falls on all alike; a ratio is of one round.
"""

import json
import time
from pathlib import Path
from typing import Annotated

import msgspec
import openvino
import typer
from rich.console import Console

from benchmarks.support.report import environment, median_with_interval, write_result
from build_engines.checkpoint.checkpoint_folder import CheckpointFiles
from build_engines.evaluation.contestant import Contestant, KvPrecision, load_contestant
from build_engines.evaluation.evaluation import evaluate
from build_engines.evaluation.tasks import Item, Kind, hash_items, load_items
from build_engines.openvino.openvino_formats import linear_bytes, openvino_bytes
from build_engines.recipes.recipe import OpenVinoRecipe
from build_engines.recipes.recipe_parts import QualitySpec
from serving.engines.providers import create_engine
from serving.engines.seam.base import Engine, GenerationRequest, SamplingParams

_DEMO = Path(__file__).resolve().parent.parent / "examples" / "demo_model"
_NUM_TOKENS = 64


def main(
    releases: Annotated[list[Path], typer.Argument(help="Release folders; the first is the base of all others.")],
    checkpoint: Annotated[Path, typer.Option(help="Checkpoint that the releases were built from.")] = _DEMO / "target",
    tasks: Annotated[Path, typer.Option(help="File of the tasks that the releases are asked.")] = _DEMO / "tasks.jsonl",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the measurement of speed.")] = 7,
    result: Annotated[
        Path | None, typer.Option(help="Measure only speed, and put it into this result of the same releases.")
    ] = None,
) -> None:
    """Evaluate each release against the first one, and the first one's KV cache in int8 against fp16."""
    console, items = Console(stderr=True), load_items(tasks)
    prompts = [item.prompt for item in items if item.kind is Kind.OPEN]
    if result is not None:
        document = json.loads(result.read_text(encoding="utf-8"))
        document |= _speeds(releases, prompts, rounds)
        result.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        return
    base = releases[0]
    rows = []
    for release in releases:
        console.print(f"{release.name}: quality")
        rows.append(_row(release, base, items, tasks, checkpoint))
    console.print(f"{base.name}: KV cache")
    kv_cache = _quality(base, base, items, tasks, ("u8", "f16"))
    console.print("speed")
    document = {
        "benchmark": "quantization",
        "environment": environment(),
        "tasks_sha256": hash_items(tasks),
        "num_items": len(items),
        "releases": rows,
        "kv_cache": kv_cache,
        **_speeds(releases, prompts, rounds),
    }
    typer.echo(str(write_result("quantization_demo_cpu", document)))


def _row(release: Path, base: Path, items: list[Item], tasks: Path, checkpoint: Path) -> dict[str, object]:
    quality = _quality(release, base, items, tasks, (None, None))
    side = load_contestant(release)
    assert side.manifest is not None
    recipe = OpenVinoRecipe.model_validate(side.manifest.recipe)
    shape = CheckpointFiles(checkpoint).shape
    predicted, size = openvino_bytes(shape, recipe), (release / "engine" / "openvino_model.bin").stat().st_size
    return {
        "name": side.manifest.name,
        "recipe": side.manifest.recipe,
        "versions": side.manifest.versions,
        "bytes": size,
        "predicted_bytes": predicted,
        "linear_bytes": size - (predicted - linear_bytes(shape, recipe)),
        "quality": quality,
    }


def _quality(
    release: Path, base: Path, items: list[Item], tasks: Path, kv: tuple[KvPrecision | None, KvPrecision | None]
) -> object:
    ours, theirs = (
        load_contestant(folder, kv_cache_precision=one) for folder, one in zip((release, base), kv, strict=True)
    )
    found = evaluate(ours, theirs, items, _limits(ours), tasks_sha256=hash_items(tasks))
    document = msgspec.to_builtins(found)
    for name in ("release_address", "base_address"):  # they change with each evaluation that is recorded
        document.pop(name)
    return document


def _limits(side: Contestant) -> QualitySpec:
    assert side.manifest is not None
    return QualitySpec.model_validate(side.manifest.recipe.get("quality", {}))


def _speeds(releases: list[Path], prompts: list[str], rounds: int) -> dict[str, object]:
    """Return the speeds with what it takes to judge them: a machine may be quieter now than it was for the rest."""
    where, sides = environment(), [load_contestant(release) for release in releases]
    ids = [[side.prompt_ids(prompt) for prompt in prompts] for side in sides]
    engines = [create_engine(side.spec) for side in sides]
    found: list[dict[str, object]] = [{} for _ in sides]
    for requests in (1, 16):
        rates: list[list[float]] = [[] for _ in sides]
        for number in range(rounds + 1):
            for index, engine in enumerate(engines):
                rate = _tokens_per_s(engine, [ids[index][k % len(prompts)] for k in range(requests)])
                if number:  # the first round compiles kernels
                    rates[index].append(rate)
        for index, each in enumerate(rates):
            ratios = [ours / theirs for ours, theirs in zip(each, rates[0], strict=True)]
            found[index][str(requests)] = {
                "tokens_per_s": median_with_interval(each),
                "ratio": median_with_interval(ratios),
            }
    for engine in engines:
        engine.close()
    precision = openvino.Core().get_property("CPU", "INFERENCE_PRECISION_HINT").get_type_name()
    return {
        "computed_in": precision,
        "speed": {"environment": where, "rounds": rounds, "output_tokens": _NUM_TOKENS, "releases": found},
    }


def _tokens_per_s(engine: Engine, prompts: list[list[int]]) -> float:
    start, count = time.perf_counter(), 0
    for key, prompt in enumerate(prompts):
        sampling = SamplingParams(max_tokens=_NUM_TOKENS, end_id=-1, top_k=1)
        engine.add(GenerationRequest(key=key, input_ids=prompt, sampling=sampling))
    while engine.has_work:
        count += sum(len(chunk.token_ids) for chunk in engine.step())
    return count / (time.perf_counter() - start)


if __name__ == "__main__":
    typer.run(main)
