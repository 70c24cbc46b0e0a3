# SPDX-License-Identifier: Apache-2.0
"""`trireme build`: the command that makes a release of a checkpoint and a recipe."""

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from build_engines.checkpoint.checkpoint_folder import CheckpointFiles
from build_engines.recipes.recipe import OpenVinoRecipe, load_recipe
from build_engines.stages.build import build as build_release
from build_engines.stages.build import check_job, plan_job
from build_engines.stages.build_job import BuildJob, Tools
from build_engines.stages.build_progress import BuildProgress
from build_engines.stages.dry_run import plan_document, plan_text
from ensemble_configs.releases.release_manifest import load_manifest
from serving.process.this_machine import read_machine
from trireme.base.errors import SpecError
from trireme.base.path_checks import check_folder_to_write

# Packages with versions that may change what is built.
_PACKAGES = (
    "tensorrt_llm", "tensorrt", "nvidia_modelopt", "transformers", "torch", "openvino", "openvino_genai",
    "openvino_tokenizers", "nncf", "optimum_intel", "llmcompressor", "compressed_tensors",
)  # fmt: skip


def build(
    recipe: Annotated[str, typer.Argument(help="Recipe file, or the name of a recipe that comes with us.")],
    checkpoint: Annotated[Path, typer.Option(help="Folder with config.json, safetensors and a tokenizer.")],
    out: Annotated[Path, typer.Option(help="Folder for releases; the new one is OUT/<name>-<address>.")],
    is_dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the commands and estimates; needs no GPU.")
    ] = False,
    is_resumed: Annotated[
        bool, typer.Option("--resume", help="Continue an unfinished build, if there is one.")
    ] = False,
    is_json: Annotated[bool, typer.Option("--json", help="Print the plan or the result as JSON.")] = False,
    trtllm_examples: Annotated[
        Path, typer.Option(help="TensorRT-LLM's examples, of the version that builds.")
    ] = Tools.trtllm_examples,
    modelopt_examples: Annotated[
        Path, typer.Option(help="ModelOpt's examples, for the pytorch back end.")
    ] = Tools.modelopt_examples,
    compressor_venv: Annotated[
        Path | None,
        typer.Option(
            help="Virtual environment with llm-compressor, for the vllm back end.",
            show_default="trireme's own, or .tools/compress-cpu of a checkout",
        ),
    ] = None,
) -> None:
    """Build a release from a checkpoint: quantize, convert, compile, seal. An old release is never touched.

    Examples:

      trireme build demo-int8 --checkpoint examples/demo_model/target --out releases

      trireme build llama-3.1-8b-fp8-h100 --checkpoint /models/llama-3.1-8b --out releases --dry-run

      trireme build my-recipe.yaml --checkpoint /models/mine --out releases --resume
    """
    spec = load_recipe(recipe)
    job = BuildJob(
        recipe=spec,
        checkpoint=CheckpointFiles(checkpoint.resolve()),
        machine=read_machine(_PACKAGES, is_asking_for_gpus=not isinstance(spec, OpenVinoRecipe)),
        tools=Tools(
            trtllm_examples.resolve(),
            modelopt_examples.resolve(),
            compressor_venv.absolute() if compressor_venv is not None else None,
        ),
        is_dry_run=is_dry_run,
    )
    if not is_dry_run:  # a dry run is often for another machine
        check_folder_to_write("--out", out)
        job.checkpoint.check_readable()
    _refuse(job)
    if is_dry_run:
        plan = plan_job(job)
        typer.echo(json.dumps(plan_document(job, plan, out), indent=2) if is_json else plan_text(job, plan, out))
        return
    with BuildProgress() as progress, _ended_like_an_interrupt():
        progress.tell(f"{spec.name}: hashing {checkpoint}, which is quick when nothing has changed")
        _ = job.checkpoint_sha256
        try:
            release = build_release(
                job,
                out.resolve(),
                progress,
                is_resumed=is_resumed,
                on_wait=lambda folder: progress.tell(f"another build has {folder}; waiting for it to end"),
            )
        except KeyboardInterrupt:
            progress.tell("interrupted; finished stages are kept, and --resume goes on from there")
            raise
    for each in load_manifest(release.path).engine_differences:
        typer.echo(f"  engine: {each.setting} is {each.built}, and the recipe says {each.asked}; recorded", err=True)
    if is_json:
        typer.echo(json.dumps({"release": str(release.path), "address": release.address, "is_new": release.is_new}))
    else:
        typer.echo(f"{release.path}{'' if release.is_new else ' (was there already, the same)'}")


def _refuse(job: BuildJob) -> None:
    """Refuse a job with findings.

    Raises:
        SpecError: the only finding, or how many there are, which are shown line by line before.
    """
    findings = check_job(job)
    if len(findings) > 1:
        for finding in findings:
            typer.echo(f"  {finding}", err=True)
        raise SpecError(f"{job.recipe.name} cannot be built for the {len(findings)} reasons above")
    if findings:
        raise SpecError(f"{job.recipe.name} cannot be built: {findings[0]}", field=findings[0].check)


@contextlib.contextmanager
def _ended_like_an_interrupt() -> Iterator[None]:
    """Turn a signal to end into an interrupt like Ctrl-C: tools are ended and what is finished is kept."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
