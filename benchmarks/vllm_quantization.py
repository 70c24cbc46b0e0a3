# SPDX-License-Identifier: Apache-2.0
"""The costs of quantization for vLLM, on the demo model: size, and quality by the gate's own figures, asked of vLLM.

`python -m benchmarks.vllm_quantization RELEASE ...`, base first. It takes releases that `trireme build` made;
`documents.quantization_page` shows the result. Speed is not measured: on a CPU it would say nothing about a GPU.
"""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from benchmarks.support.report import environment, write_result
from build_engines.checkpoint.checkpoint_folder import CheckpointFiles
from build_engines.evaluation.contestant import Contestant, load_contestant
from build_engines.evaluation.evaluation import evaluate
from build_engines.evaluation.tasks import Item, hash_items, load_items
from build_engines.recipes.recipe import VllmRecipe
from build_engines.vllm.vllm_formats import vllm_bytes
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec

_DEMO = Path(__file__).resolve().parent.parent / "examples" / "demo_model"


def main(
    releases: Annotated[list[Path], typer.Argument(help="Release folders; the first is the base of all others.")],
    checkpoint: Annotated[Path, typer.Option(help="Checkpoint that the releases were built from.")] = _DEMO / "target",
    tasks: Annotated[Path, typer.Option(help="File of the tasks that the releases are asked.")] = _DEMO / "tasks.jsonl",
    vllm_venv: Annotated[Path | None, typer.Option(help="Environment with vLLM.")] = None,
    out: Annotated[Path | None, typer.Option(help="Result file.")] = None,
) -> None:
    """Evaluate each release against the first one, by one thread each."""
    console, items = Console(stderr=True), load_items(tasks)
    rows = []
    for release in releases[1:]:
        console.print(f"{release.name}: quality")
        rows.append(_row(release, releases[0], items, tasks, checkpoint, vllm_venv))
    base = _side(releases[0], vllm_venv)
    assert base.manifest is not None
    document = {
        "benchmark": "vllm_quantization",
        "environment": environment(),
        "tasks_sha256": hash_items(tasks),
        "num_items": len(items),
        "base": {"name": base.manifest.name, **_sizes(base, checkpoint)},
        "releases": rows,
    }
    typer.echo(str(write_result("quantization_demo_vllm", document, out)))


def _side(folder: Path, vllm_venv: Path | None) -> Contestant:
    """Return a side on one thread, whose sums do not depend on what else the machine does."""
    side = load_contestant(folder, vllm_venv=vllm_venv)
    if not isinstance(side.spec, VllmEngineSpec):
        raise typer.BadParameter(f"{folder} is no release for vllm")
    side.spec = side.spec.model_copy(update={"num_threads": 1})
    return side


def _sizes(side: Contestant, checkpoint: Path) -> dict[str, object]:
    assert side.manifest is not None
    recipe = VllmRecipe.model_validate(side.manifest.recipe)
    return {
        "recipe": side.manifest.recipe,
        "versions": side.manifest.versions,
        "bytes": side.manifest.weight_bytes_per_rank,
        "predicted_bytes": vllm_bytes(CheckpointFiles(checkpoint).shape, recipe),
    }


def _row(
    release: Path, base: Path, items: list[Item], tasks: Path, checkpoint: Path, vllm_venv: Path | None
) -> dict[str, object]:
    side = _side(release, vllm_venv)
    sizes = _sizes(side, checkpoint)
    assert side.manifest is not None
    limits = VllmRecipe.model_validate(side.manifest.recipe).quality
    found = evaluate(side, _side(base, vllm_venv), items, limits, tasks_sha256=hash_items(tasks))
    quality = msgspec.to_builtins(found)
    for name in ("release_address", "base_address"):  # they change with each evaluation that is recorded
        quality.pop(name)
    return {"name": side.manifest.name, **sizes, "quality": quality}


if __name__ == "__main__":
    typer.run(main)
