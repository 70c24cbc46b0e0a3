# SPDX-License-Identifier: Apache-2.0
"""The wrong hits of a semantic cache on the committed pairs of questions, with a real embedding model on a real Triton.

`python -m benchmarks.studies.semantic_cache --help`. Optimum Intel exports the model, as docs/embeddings.md says;
`python3 scripts/bootstrap.py --only encoder build-cpu` installs both.
"""

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from benchmarks.support.costless_server import costless_deployment
from benchmarks.support.report import commit, environment, result_path, write_result
from benchmarks.support.through_ensemble import ThroughEnsemble
from build_engines.openvino.openvino_environment import BUILD_PYTHON
from clients.access import NO_ACCESS
from ensemble_configs.spec.engine.embedding_spec import EmbeddingModelSpec
from gateway.cache.cache_report_command import report_of, similarities_by_server
from gateway.cache.wrong_hits import read_pairs
from scripts import encoder
from trireme.base.project_files import CODE_ROOT

_NAME = "semantic_cache"
_CHECKPOINT = encoder.checkpoint(CODE_ROOT)
_PAIRS = CODE_ROOT / "examples/semantic_cache/pairs.jsonl"
_LEVELS = (0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975, 0.99)
_MAX_TOKENS = 256  # as the model's own sentence_bert_config.json has it


def exported(checkpoint: Path, out: Path) -> Path:
    """Export an embedding model to OpenVINO, unless that was done, and return its folder."""
    if not (out / "openvino_model.bin").is_file():
        program = BUILD_PYTHON.with_name("optimum-cli")
        command = [str(program), "export", "openvino", "--model", str(checkpoint), "--task", "feature-extraction"]
        subprocess.run([*command, str(out)], check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    return out


def main(
    checkpoint: Annotated[
        Path, typer.Option(help="Folder of the checkpoint.", show_default=".tools/encoder's")
    ] = _CHECKPOINT,
    pairs: Annotated[Path, typer.Option(help="File of labelled pairs.", show_default="the committed ones")] = _PAIRS,
    is_kept: Annotated[bool, typer.Option("--keep/--no-keep", help="Write the result to benchmarks/results.")] = True,
) -> None:
    """Ask the model for all questions, and report; a minute."""
    begun_at = commit()
    folder = exported(checkpoint, CODE_ROOT / "build" / "encoder")
    spec = EmbeddingModelSpec(name="embed", dir=folder, pooling="mean", max_tokens=_MAX_TOKENS)
    labelled = read_pairs(pairs)
    deployment = costless_deployment(_NAME).model_copy(update={"embedding_models": (spec,)})
    with ThroughEnsemble(deployment) as server:
        found = asyncio.run(similarities_by_server(labelled, spec, server.url, NO_ACCESS))
        where = environment(triton_http=server.http)
    report = report_of(labelled, found, _LEVELS, model=spec.name, num_worst=5)
    told = {"benchmark": _NAME, "encoder": encoder.NAME, **msgspec.to_builtins(report), "environment": where}
    if is_kept:
        typer.echo(write_result(_NAME, told, result_path(_NAME, begun_at)))
    else:
        typer.echo(msgspec.json.format(msgspec.json.encode(told)).decode())


if __name__ == "__main__":
    typer.run(main)
