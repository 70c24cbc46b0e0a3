# SPDX-License-Identifier: Apache-2.0
"""`trireme adapters`: LoRA adapters of a deployment, added and taken out while its servers run.

An adapter is a link to a hidden folder that never changes. Unloading it removes the link; the files stay for an hour,
because TensorRT-LLM reads the files of a request after the request has been checked, on some ranks when its turn comes,
and a file that is missing then ends the engine (docs/trtllm_behaviour.md, H2 and H3). The next command removes them.
"""

import contextlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from ensemble_configs.spec.deployment import load_deployment
from ensemble_configs.spec.engine.lora_spec import LoraSpec
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec, TensorRtEngineSpec
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from serving.engines.seam.adapter_check import CONFIG, NAME, WEIGHTS, AdapterFacts, ModelSizes, check_adapter
from serving.engines.seam.adapter_folder import adapter_folders, engine_modules, files_of, model_sizes, named_modules
from trireme.base.durable_files import sync
from trireme.base.errors import SpecError

_DeploymentOption = Annotated[
    Path, typer.Option("--deployment", help="Deployment file of the servers that use the adapters.")
]
_ModelOption = Annotated[
    str | None,
    typer.Option("--model", help="Model that the adapter belongs to; needed where the deployment has several."),
]
_FILES = ".files"  # suffix of the name of a folder that a link names
KEPT_S = 3600.0  # longer than any request waits
_JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]


def load(
    source: Annotated[Path, typer.Argument(help="Folder with adapter_config.json and adapter_model.safetensors.")],
    *,
    name: Annotated[
        str | None,
        typer.Option(
            help="Name by which requests ask for the adapter; a number for lora_task_id.", show_default="the folder's"
        ),
    ] = None,
    deployment: _DeploymentOption,
    model: _ModelOption = None,
    is_json: _JsonOption = False,
) -> None:
    """Add an adapter: check it, then make it available to every server of the deployment that sees engine.lora.dir.

    Requests name it by `lora_name` (or, a number, by `lora_task_id`) from then on. Nothing is loaded anew and nothing
    stops. A name that is taken is refused: give new weights a new name, and unload the old one when nobody asks for it.

    \b
    Examples:
      trireme adapters load ./legal-en-3 --deployment mine.yaml
      trireme adapters load ./out --name 7 --deployment mine.yaml --json

    \b
    Exit codes: 0 the adapter can be requested; 2 the adapter, its name or the deployment is wrong.
    """
    lora, sizes, modules = lora_of(deployment, model)
    name = name or source.resolve().name
    if not NAME.fullmatch(name):
        raise SpecError(
            f"--name {name!r} must be letters, digits, '.', '_' and '-', at most 128, the first a letter or a digit",
            field="name",
            value=name,
        )
    facts = check_adapter(source, lora, modules(lora), sizes)
    if (lora.dir / name).exists():
        raise SpecError(
            f"there is an adapter {name!r} in {lora.dir} already; name another with --name, or unload that one first",
            field="name",
            value=name,
        )
    _put(source, lora.dir, name)
    _remove_old_files(lora.dir)
    _tell(is_json, {"name": name, **_told(facts)}, f"{name} can be asked for: lora_name={name} ({_in_words(facts)})")


def unload(
    name: Annotated[str, typer.Argument(help="Name of the adapter to unload.")],
    *,
    deployment: _DeploymentOption,
    model: _ModelOption = None,
    is_json: _JsonOption = False,
) -> None:
    """Unload an adapter: refuse requests that name it from then on; running requests go on to their end.

    \b
    Example:
      trireme adapters unload legal-en-2 --deployment mine.yaml

    \b
    Exit codes: 0 the adapter is gone; 2 there is no adapter of that name.
    """
    lora, _, _ = lora_of(deployment, model)
    folder = lora.dir / name
    if folder not in adapter_folders(lora):
        names = ", ".join(other.name for other in adapter_folders(lora)) or "none"
        raise SpecError(f"there is no adapter {name!r} in {lora.dir}; there are: {names}", field="name", value=name)
    _take_out(folder)
    _remove_old_files(lora.dir)
    _tell(is_json, {"name": name}, f"{name} is refused from now on")


def status(*, deployment: _DeploymentOption, model: _ModelOption = None, is_json: _JsonOption = False) -> None:
    """Show the adapters that requests may name, and the problem of each adapter that cannot be served.

    \b
    Example:
      trireme adapters status --deployment mine.yaml

    \b
    Exit codes: 0 all adapters can be served; 1 an adapter cannot; 2 the deployment has no folder of adapters.
    """
    lora, sizes, _ = lora_of(deployment, model)
    rows: list[dict[str, object]] = []
    for folder in adapter_folders(lora):
        try:
            facts = check_adapter(folder, lora, named_modules(lora), sizes)
            rows.append({"name": folder.name, **_told(facts), "problem": None})
        except SpecError as exc:
            rows.append({"name": folder.name, "problem": exc.message})
    lines = [f"{row['name']}  {row['problem'] or 'rank {rank}, {bytes:,} bytes'.format(**row)}" for row in rows]
    _tell(is_json, rows, "\n".join(lines) or f"there are none in {lora.dir}")
    if any(row["problem"] for row in rows):
        raise typer.Exit(1)


_ModulesOf = Callable[[LoraSpec], frozenset[str] | None]  # that a new adapter may change; None: any


def lora_of(deployment: Path, model: str | None) -> tuple[LoraSpec, ModelSizes, _ModulesOf]:
    """Return the LoRA part of a model's engine, the sizes of the model as far as this machine knows them, and modules.

    Raises:
        SpecError: no such model, or its engine takes no adapters by request.
    """
    models = load_deployment(deployment).models
    chosen = [one for one in models if model is None or one.name == model]
    if len(chosen) != 1:
        names = ", ".join(one.name for one in models)
        raise SpecError(f"--model must be one of {names}; {deployment} serves them", field="model", value=model)
    engine = chosen[0].engine
    if not isinstance(engine, TensorRtEngineSpec | PyTorchEngineSpec | VllmEngineSpec) or engine.lora is None:
        raise SpecError(
            f"{deployment}: the engine has no engine.lora, so it takes no adapters by request; name their folder in "
            "engine.lora.dir, for the providers tensorrt, pytorch and vllm",
            field="engine.lora",
        )
    modules = named_modules if isinstance(engine, VllmEngineSpec) else _started_modules
    return engine.lora, model_sizes(engine.dir), modules


def _started_modules(lora: LoraSpec) -> frozenset[str] | None:
    # Where the deployment takes the modules from its adapters, the first adapter may have any modules.
    return engine_modules(lora) if lora.target_modules or adapter_folders(lora) else None


def _put(source: Path, folder: Path, name: str) -> None:
    """Copy the adapter's two files into `folder`; the adapter appears with both, or not at all."""
    draft = folder / f".{name}.{secrets.token_hex(8)}{_FILES}"
    folder.mkdir(parents=True, exist_ok=True)
    draft.mkdir()
    try:
        for file in (CONFIG, WEIGHTS):
            shutil.copyfile(source / file, draft / file)
            sync(draft / file)
        sync(draft)
        (folder / name).symlink_to(draft.name)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    sync(folder)


def _take_out(folder: Path) -> None:
    """Remove an adapter from requests in one step; removing file by file would show half of it."""
    if folder.is_symlink():
        files = files_of(folder)
        if files in _hidden(folder.parent):  # not the target of a link that an operator made
            os.utime(files)  # the hour begins
        folder.unlink()
    else:  # a folder that was copied there by hand: its name is where its files are
        folder.rename(folder.parent / f".{folder.name}.{secrets.token_hex(8)}{_FILES}")
    sync(folder.parent)


def _remove_old_files(folder: Path) -> None:
    """Remove the files of adapters that were unloaded, or never completed, an hour ago."""
    used = {files_of(link).name for link in folder.iterdir() if link.is_symlink()}
    for files in _hidden(folder):
        with contextlib.suppress(FileNotFoundError):  # another command does the same
            if files.name not in used and time.time() - files.stat().st_mtime > KEPT_S:
                shutil.rmtree(files)


def _hidden(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if path.name.startswith(".") and path.name.endswith(_FILES))


def _told(facts: AdapterFacts) -> dict[str, object]:
    return {"rank": facts.rank, "modules": sorted(facts.modules), "bytes": facts.num_bytes}


def _in_words(facts: AdapterFacts) -> str:
    return f"rank {facts.rank}, {facts.num_bytes:,} bytes, {', '.join(sorted(facts.modules))}"


def _tell(is_json: bool, facts: object, words: str) -> None:
    typer.echo(json.dumps(facts) if is_json else words)
