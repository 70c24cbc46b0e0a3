# SPDX-License-Identifier: Apache-2.0
"""An imported engine and its tokenizer as a built release: linked or copied into a folder of their own, and sealed."""

import dataclasses
from pathlib import Path

import yaml
from pydantic import JsonValue

from build_engines.cache.linked_files import link_or_copy
from build_engines.migration.compiled_engine import CompiledEngine, int_of, kv_bytes_per_token
from build_engines.migration.import_report import Entry, carried, implied, lost
from build_engines.migration.importing import Import, to_text
from ensemble_configs.releases.file_hashes import hash_file, hash_files, hash_listing
from ensemble_configs.releases.release_manifest import ReleaseManifest, hash_recipe, seal
from ensemble_configs.releases.release_parts import ModelIdentity, ReleaseLimits
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.validation import validate
from trireme.base.errors import SpecError
from trireme.base.path_checks import check_folder_to_write

_ENGINE_FILES = ("config.json", "generation_config.json", "rank*.engine")
# A tokenizer's folder is often that of the whole model; the weights do not belong to an engine's release.
TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
)


def seal_import(planned: Import, folder: Path, *, num_parameters: int, sm: int | None) -> Import:
    """Make `folder` a release of the import's engine and tokenizer, and the deployment one of that release.

    Files are hard links where `folder` is on the same file system, else copies; the old ones stay.

    Args:
        planned: the import of an `inflight_batcher_llm` repository whose engine and tokenizer are on this machine.
        folder: new or empty.
        num_parameters: parameters of the model; an engine's config does not tell.
        sm: compute capability of the GPU that the engine was built on, 90 for 9.0; None leaves it unchecked.

    Raises:
        SpecError: there is no engine or tokenizer here, the folder is in use, in one of the old ones or cannot be
            written to, or engine and tokenizer cannot be a release.
    """
    engine = planned.engine
    if engine is None:
        raise SpecError(
            "a release is made of a compiled engine that is on this machine; name it with --engine-dir, and of a "
            "checkpoint `trireme build` makes one, or `trireme import` of its folder"
        )
    check_release_dir(folder, planned.report.repository, engine.file.parent, planned.deployment.model.tokenizer.dir)
    manifest = _manifest(planned, engine, num_parameters=num_parameters, sm=sm)
    take_files(engine.file.parent, folder / "engine", _ENGINE_FILES)
    take_files(planned.deployment.model.tokenizer.dir, folder / "tokenizer", TOKENIZER_FILES)
    address = seal(folder, manifest)
    return _of_release(planned, folder.resolve(), address, sm)


def check_release_dir(folder: Path, *old_folders: Path) -> None:
    """Refuse a folder that an import may not make a release.

    Raises:
        SpecError: the folder is in use, in one of the old ones or cannot be written to.
    """
    check_folder_to_write("--release-dir", folder)
    for old in old_folders:
        if folder.resolve().is_relative_to(old.resolve()):
            raise SpecError(
                f"--release-dir {folder} lies in {old}, and an import changes nothing there; name a folder elsewhere",
                file=folder,
            )
    if folder.exists() and any(folder.iterdir()):
        raise SpecError(f"{folder} is not empty; name a new folder with --release-dir", file=folder)


def take_files(source: Path, target: Path, patterns: tuple[str, ...]) -> None:
    """Link the files of a folder that a pattern names, or copy them on another file system."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted({path for pattern in patterns for path in source.glob(pattern) if path.is_file()}):
        link_or_copy(path, target / path.name)


def _manifest(planned: Import, engine: CompiledEngine, *, num_parameters: int, sm: int | None) -> ReleaseManifest:
    build, mapping = engine.build, engine.mapping
    ranks = sorted(engine.file.parent.glob("rank*.engine"))
    tokenizer = planned.deployment.model.tokenizer.dir / "tokenizer.json"
    if not ranks or not tokenizer.is_file():
        missing = tokenizer if ranks else engine.file.parent / "rank0.engine"
        raise SpecError(f"there is no {missing}, so there is nothing to make a release of", file=missing)
    recipe: dict[str, JsonValue] = {"imported_from": str(planned.report.repository), "engine_config": engine.data}
    data = {
        "name": planned.deployment.name,
        "model": ModelIdentity(
            architecture=str(engine.pretrained.get("architecture", "unknown")),
            num_parameters=num_parameters,
            source=f"imported from {planned.report.repository}",
        ),
        # The checkpoint is not here; its weights are in the engine.
        "weights_sha256": hash_listing(dict(zip([path.name for path in ranks], hash_files(ranks), strict=True))),
        "tokenizer_sha256": hash_file(tokenizer),
        "recipe": recipe,
        "recipe_sha256": hash_recipe(recipe),
        "provider": "tensorrt",
        "versions": {"tensorrt_llm": engine.version},
        "sm": sm,
        **{key: int_of(mapping, key) or 1 for key in ("tp_size", "pp_size", "cp_size", "world_size")},
        "limits": ReleaseLimits.model_validate(
            {
                "max_batch_size": int_of(build, "max_batch_size"),
                "max_num_tokens": int_of(build, "max_num_tokens"),
                "max_seq_len": int_of(build, "max_seq_len"),
                "max_beam_width": int_of(build, "max_beam_width") or 1,
            }
        ),
        "weight_bytes_per_rank": max(path.stat().st_size for path in ranks),
        "kv_bytes_per_token": kv_bytes_per_token(engine),
        "kv_block_tokens": engine.kv_block_tokens,
        "vocab_size": int_of(engine.pretrained, "vocab_size"),
    }
    return validate(ReleaseManifest, data, source=engine.file)


def _of_release(planned: Import, folder: Path, address: str, sm: int | None) -> Import:
    data = yaml.safe_load(planned.text)
    for section in ("engine", "tokenizer"):
        del data[section]["dir"]
    data = {"name": data.pop("name"), "release_dir": str(folder), **{key: part for key, part in data.items() if part}}
    report = planned.report
    entries = (
        *map(_in_release, report.entries),
        Entry("release", address, carried("release_dir", str(folder))),
        _sm_entry(sm),
    )
    return Import(
        deployment=validate(DeploymentSpec, data, source=report.deployment),
        text=to_text(data),
        report=dataclasses.replace(report, entries=entries),
        engine=planned.engine,
    )


def _in_release(entry: Entry) -> Entry:
    """Return the entry of a folder as part of the release, which the deployment names in its place."""
    if entry.verdict.where not in {"engine.dir", "tokenizer.dir"}:
        return entry
    return dataclasses.replace(entry, verdict=carried("release_dir", None, "a part of the release"))


def _sm_entry(sm: int | None) -> Entry:
    if sm is None:
        why = "an engine's config does not tell its GPU, so a start cannot refuse another one; seal again with --sm"
        return Entry("release: sm", "", lost(why))
    return Entry("release: sm", str(sm), implied("checked at every start"))
