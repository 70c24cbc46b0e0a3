# SPDX-License-Identifier: Apache-2.0
"""`trireme import`: a deployment from a repository of `inflight_batcher_llm` or `llmapi`, or from a checkpoint."""

from pathlib import Path
from typing import Annotated

import typer

from build_engines.migration.checkpoint_import import import_checkpoint, is_checkpoint
from build_engines.migration.import_report import Outcome
from build_engines.migration.importing import plan_import
from build_engines.migration.sealing import seal_import
from trireme.base.errors import SpecError
from trireme.base.path_checks import check_file_to_write


def import_repository(
    old_repository: Annotated[
        Path, typer.Argument(help="Filled model repository, or a checkpoint for vLLM.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="Deployment file to write.", show_default=False)],
    engine_dir: Annotated[
        Path | None, typer.Option(help="Folder of the compiled engine.", show_default="what the repository names")
    ] = None,
    tokenizer_dir: Annotated[
        Path | None, typer.Option(help="Folder of the tokenizer.", show_default="what the repository names")
    ] = None,
    release_dir: Annotated[
        Path | None,
        typer.Option(
            help="Make this new folder a sealed release of engine and tokenizer (hard links, or copies on another file "
            "system), and deploy that. Needs --num-parameters, but for a checkpoint.",
            show_default="engine and tokenizer stay where they are",
        ),
    ] = None,
    num_parameters: Annotated[
        int | None, typer.Option(min=1, help="Parameters of the model, for the release.", show_default=False)
    ] = None,
    sm: Annotated[
        int | None,
        typer.Option(min=1, help="Compute capability the engine was built on, 90 for 9.0.", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 when something cannot be carried.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the deployment file if it is there.")] = False,
) -> None:
    """Turn a repository of inflight_batcher_llm (0.17 to 1.2) or llmapi into a deployment.

    Every setting is reported: carried into the deployment, implied, or one that cannot be carried, and why.

    Of a checkpoint, quantized (compressed-tensors, AWQ, GPTQ, FP8) or not, it makes a deployment of provider vllm.

    Nothing of the old repository is changed.

    Examples:

      trireme import /srv/triton_model_repo --out deployment.yaml

      trireme import ./llama_ifb --engine-dir /engines/llama --tokenizer-dir /models/llama --out llama.yaml --strict

      trireme import ./llmapi_repo --out llama.yaml --json

      trireme import ./llama_ifb --out llama.yaml --release-dir /releases/llama-1 --num-parameters 8030261248 --sm 90

      trireme import /models/llama-3.1-8b-awq --out llama.yaml --release-dir /releases/llama-awq
    """
    if out.exists() and not force:
        raise SpecError(f"{out} is there already; name another file or add --force", file=out)
    check_file_to_write("--out", out)
    if is_checkpoint(old_repository):
        for option, value in (("--engine-dir", engine_dir), ("--num-parameters", num_parameters), ("--sm", sm)):
            if value is not None:
                raise SpecError(
                    f"{option} is for a model repository, and {old_repository} is a checkpoint; leave it out"
                )
        planned = import_checkpoint(old_repository, out=out, release_dir=release_dir, tokenizer_dir=tokenizer_dir)
    else:
        planned = plan_import(old_repository, out=out, engine_dir=engine_dir, tokenizer_dir=tokenizer_dir)
    if release_dir is not None and not is_checkpoint(old_repository):
        if num_parameters is None:
            raise SpecError("--release-dir needs --num-parameters: an engine's config.json does not tell the model's")
        planned = seal_import(planned, release_dir, num_parameters=num_parameters, sm=sm)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(planned.text, encoding="utf-8")
    report = planned.report
    typer.echo(report.to_json() if json else report.to_text())
    if strict and report.of(Outcome.LOST):
        raise typer.Exit(1)
