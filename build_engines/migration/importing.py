# SPDX-License-Identifier: Apache-2.0
"""An import from end to end: read the old repository, ask every rule, write a deployment that validates."""

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import ValidationError

from build_engines.migration.compiled_engine import CompiledEngine, load_compiled_engine
from build_engines.migration.compiled_rules import engine_entries
from build_engines.migration.context import Context
from build_engines.migration.import_report import Entry, Report, carried, lost, nested
from build_engines.migration.llmapi import is_llmapi, llmapi_entries
from build_engines.migration.old_repository import load_models, repository_entries
from build_engines.migration.old_tokenizer import tokenizer_entries
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.validation import validate
from trireme.base.errors import SpecError

_HEADER = "# Written by `trireme import`. What is not here has Trireme's default.\n"
_KEPT = "is not on this machine; kept as it is, for the import may run on another one than the server"
_NO_ENGINE_CONFIG = (
    "the engine's folder is not here, so its version, engine.tp_size, pp_size, max_num_seqs, max_seq_len and "
    "max_num_batched_tokens are not known and have Trireme's defaults; import again with --engine-dir, or set them"
)
_FOLDERS = {"engine.dir", "tokenizer.dir", "engine.tokenizer_dir"}
_ORDER = ("name", "tokenizer", "engine", "responses", "bls", "triton")


@dataclass(frozen=True, kw_only=True)
class Import:
    """A deployment, not yet written, and the report on every old setting."""

    deployment: DeploymentSpec
    text: str
    report: Report
    engine: CompiledEngine | None  # None: a checkpoint, or not on this machine


def plan_import(
    repository: Path, *, out: Path, engine_dir: Path | None = None, tokenizer_dir: Path | None = None
) -> Import:
    """Read a filled repository, and an engine where it is on this machine; nothing is written.

    Args:
        repository: a repository of `inflight_batcher_llm` or `llmapi`.
        out: where the deployment will be; its name comes from this.
        engine_dir: replaces the engine's folder that the repository names.
        tokenizer_dir: replaces the tokenizer's folder that the repository names.

    Raises:
        SpecError: the folder is no such repository, or names no engine or tokenizer.
    """
    models = load_models(repository)
    if is_llmapi(repository):
        kind = "llmapi"
        entries = list(llmapi_entries(repository, models, engine_dir=engine_dir, tokenizer_dir=tokenizer_dir))
        engine = None
    else:
        kind = "inflight_batcher_llm"
        settings = {
            f"{model.name}.{name}": value for model in models.values() for name, value in model.settings.items()
        }
        named = settings.get("tensorrt_llm.parameters.gpt_model_path")
        folder = engine_dir or (Path(named.text) if named is not None and named.is_set else None)
        engine = load_compiled_engine(folder) if folder is not None else None
        context = Context(settings=settings, engine=engine, engine_dir=engine_dir, tokenizer_dir=tokenizer_dir)
        provider = carried("engine.provider", "tensorrt", "compiled engines")
        entries = [Entry("repository", kind, provider), *repository_entries(models, context)]
        if tokenizer_dir is not None and "preprocessing" not in models:
            verdict = carried("tokenizer.dir", str(tokenizer_dir.resolve()), "of --tokenizer-dir")
            entries.append(Entry("preprocessing", "", verdict, "not there"))
        if engine is not None:
            entries += engine_entries(engine)
    data = nested(entries)
    entries += tokenizer_entries(_path(data, "tokenizer"), engine, is_compiled=kind == "inflight_batcher_llm")
    if engine is None and kind == "inflight_batcher_llm":
        entries.append(Entry("engine config.json", "", lost(_NO_ENGINE_CONFIG)))
    return _checked(entries, Report(repository=repository, kind=kind, deployment=out, entries=()), engine)


def _path(data: dict[str, object], section: str) -> Path | None:
    part = data.get(section)
    folder = part.get("dir") if isinstance(part, dict) else None
    return Path(str(folder)) if folder else None


def _told_of_missing(entry: Entry) -> Entry:
    """Return the entry with a note if its folder is not here."""
    folder = entry.verdict.fields.get(entry.verdict.where)
    if entry.verdict.where not in _FOLDERS or Path(str(folder)).is_dir():
        return entry
    why = "; ".join(part for part in (entry.verdict.why, f"{folder} {_KEPT}") if part)
    return dataclasses.replace(entry, verdict=dataclasses.replace(entry.verdict, why=why))


def _checked(entries: Sequence[Entry], report: Report, engine: CompiledEngine | None) -> Import:
    data, out = nested(entries), report.deployment
    for section, option in (("engine", "--engine-dir"), ("tokenizer", "--tokenizer-dir")):
        if _path(data, section) is None:
            raise SpecError(
                f"{report.repository} names no {section}; name its folder with {option}", file=report.repository
            )
    data["name"] = name_of(out)
    try:
        deployment = validate(DeploymentSpec, data, source=out)
    except SpecError as exc:
        fitting = [_without_refused(entry, exc.__cause__, data) for entry in entries]
        if fitting == list(entries):
            raise
        return _checked(fitting, report, engine)
    data = _in_order(data, _ORDER)
    data["engine"] = _in_order(data["engine"], ("provider", "dir", *type(deployment.model.engine).model_fields))
    told = tuple(_told_of_missing(entry) for entry in entries)
    return Import(
        deployment=deployment, text=to_text(data), report=dataclasses.replace(report, entries=told), engine=engine
    )


def _without_refused(entry: Entry, cause: BaseException | None, data: dict[str, object]) -> Entry:
    """Return an entry whose value no deployment may have as lost.

    The reason is that of the deployment's own check.
    """
    for error in cause.errors() if isinstance(cause, ValidationError) else ():
        # A union's location names the member, too: engine, tensorrt, sink_tokens.
        location = DeploymentSpec.shown_location(error["loc"], data)
        *parents, last = (str(part) for part in location if isinstance(part, str))
        for field in entry.verdict.fields:
            if field.startswith(f"{parents[0] if parents else last}.") and field.rpartition(".")[2] == last:
                return dataclasses.replace(entry, verdict=lost(f"{field} refuses it: {error['msg']}; set another"))
    return entry


def to_text(data: dict[str, object]) -> str:
    """Return the text of a deployment file."""
    return _HEADER + yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)


def _in_order(section: object, names: Sequence[str]) -> dict[str, object]:
    assert isinstance(section, dict)
    return {name: section[name] for name in dict.fromkeys(names) if name in section}


def name_of(out: Path) -> str:
    """Return the deployment's name, from the file's."""
    name = re.sub(r"[^a-z0-9]+", "_", out.stem.lower()).strip("_")
    return name if name[:1].isalpha() else f"imported_{name}".rstrip("_")
