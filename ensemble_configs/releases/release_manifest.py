# SPDX-License-Identifier: Apache-2.0
"""A built release: an immutable folder with a manifest that says what it is and lists every file by hash.

    RELEASE/engine/          what the provider loads: rank0.engine ... and config.json, a checkpoint, or OpenVINO's IR
    RELEASE/tokenizer/       tokenizer.json and what belongs to it
    RELEASE/release.json     the manifest (`ReleaseManifest`), written last: a folder without one is no release
    RELEASE/provenance.json  who built it, when, where and how long; outside the content
    RELEASE/release.sig      a detached signature of the address, where somebody signed it; outside the content

Not to be confused with `<version>/release.json` of a model repository (`ensemble_configs.render.release_file`), which
says what Triton's models of one version serve, and by its `engine.dir` points at `RELEASE/engine`.
"""

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from ensemble_configs.releases.file_hashes import HashMemory, hash_file, hash_files, hash_listing
from ensemble_configs.releases.release_parts import (
    Bytes,
    DraftModel,
    EngineDifference,
    EvaluationBase,
    EvaluationResult,
    ModelIdentity,
    Override,
    PackageName,
    ReleaseFile,
    ReleaseLimits,
    ReleasePath,
    Sha256,
    StepCosts,
)
from ensemble_configs.spec.base import Positive, PositiveSize, Spec
from ensemble_configs.spec.finding import Finding, refuse
from ensemble_configs.spec.validation import validate
from trireme.base.durable_files import draft_of, sync, write_atomically
from trireme.base.errors import SpecError

MANIFEST_FILE = "release.json"
PROVENANCE_FILE = "provenance.json"
SIGNATURE_FILE = "release.sig"
_NOT_CONTENT = frozenset({MANIFEST_FILE, PROVENANCE_FILE, SIGNATURE_FILE, draft_of(Path(MANIFEST_FILE)).name})

# What must be installed in the very version that a release was built with, the first, if any, being known. A compiled
# engine loads in no other; with another, a release is not the one that was evaluated.
BINDING_PACKAGES = {
    "tensorrt": ("tensorrt_llm", "tensorrt"),
    "pytorch": ("tensorrt_llm",),
    "openvino": ("openvino", "openvino_genai"),
    "vllm": (),  # it is a checkpoint, which any vLLM with the format loads; `engine.vllm` pins one
}

_BUILD_AGAIN = "build the release again, or pull it again from where it is whole"
_ENGINE_FILES = (".engine", "openvino_model.xml")  # as names end
_WEIGHT_FILES = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json")
_LET_READ = "let this user read it"


class ReleaseManifest(Spec):
    """The content of `RELEASE/release.json`; `files` is filled by `seal`."""

    manifest_version: Literal[1] = 1
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    model: ModelIdentity
    weights_sha256: Sha256 = Field(description="of the checkpoint's weight files, by `hash_listing`")
    tokenizer_sha256: Sha256 = Field(description="of tokenizer/tokenizer.json")
    recipe_sha256: Sha256 = Field(description="of the recipe, by `hash_recipe`")
    recipe: dict[str, JsonValue]
    provider: Literal["openvino", "tensorrt", "pytorch", "vllm"]
    versions: dict[PackageName, str] = Field(
        description="of the packages it was built with, by name with underscores: tensorrt_llm, tensorrt, openvino"
    )
    sm: Positive | None = Field(default=None, description="the GPU's compute capability, 90 for 9.0; none: any, or CPU")
    tp_size: Positive = 1
    pp_size: Positive = 1
    cp_size: Positive = 1
    world_size: Positive = 1
    limits: ReleaseLimits
    weight_bytes_per_rank: PositiveSize = Field(description="of the largest rank, as all bytes below")
    kv_bytes_per_token: PositiveSize
    kv_block_tokens: Positive = 32
    workspace_bytes: Bytes = Field(default=0, description="activations and the engine's own buffers")
    vocab_size: Positive = Field(description="rows of the embedding, padding included")
    draft: DraftModel | None = None
    step_costs: StepCosts | None = Field(default=None, description="for the metrics; none: they show no MBU and MFU")
    engine_differences: tuple[EngineDifference, ...] = Field(
        default=(),
        description="what the compiler changed of the recipe's settings, none of which the engine depends on",
    )
    evaluation: tuple[EvaluationResult, ...] = ()
    evaluated_against: EvaluationBase | None = None
    override: Override | None = None
    files: dict[ReleasePath, ReleaseFile] = Field(default={}, description="all of the content but the manifest")

    @model_validator(mode="after")
    def _parts_fit(self) -> "ReleaseManifest":
        if self.world_size != self.tp_size * self.pp_size * self.cp_size:
            raise ValueError(
                f"world_size ({self.world_size}) is not tp_size ({self.tp_size}) * pp_size ({self.pp_size}) * "
                f"cp_size ({self.cp_size})"
            )
        for name in BINDING_PACKAGES[self.provider][:1]:
            if name not in self.versions:
                raise ValueError(f"versions does not name {name}")
        if self.recipe_sha256 != hash_recipe(self.recipe):
            raise ValueError(f"recipe_sha256 is not that of the recipe, {hash_recipe(self.recipe)}")
        return self

    @property
    def required_files(self) -> tuple[str, ...]:
        """Return the files that a release of this provider cannot be without."""
        engine = {
            "tensorrt": ("config.json", *(f"rank{rank}.engine" for rank in range(self.world_size))),
            "pytorch": ("config.json",),
            "openvino": ("openvino_model.xml", "openvino_model.bin", "config.json"),
            "vllm": ("config.json",),
        }[self.provider]
        draft = () if self.draft is None else (f"{self.draft.dir}/config.json",)
        return (*(f"engine/{name}" for name in engine), *draft, "tokenizer/tokenizer.json")


def hash_recipe(recipe: dict[str, JsonValue]) -> str:
    """Return the SHA-256 of a recipe, whatever the order of its keys."""
    text = json.dumps(recipe, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def seal(folder: Path, manifest: ReleaseManifest) -> str:
    """Make a folder a release: hash its files, and write the manifest, atomically, as the very last step.

    Sealed again with another manifest, with evaluation results for example, it has another address, and a signature of
    the old one does not hold any more. What is in `manifest.files` counts for nothing.

    Returns:
        The address.

    Raises:
        SpecError: a file that such a release must have is missing, something in the folder is not a plain file, or the
            tokenizer is not the one that the manifest names. The folder is as it was.
    """
    content = _content(folder)
    if strange := [path for path, file in content.items() if file.is_symlink() or not file.is_file()]:
        raise SpecError(
            f"{folder}: {strange[0]} is not a plain file; copy what it points at into the release", file=folder
        )
    if missing := [path for path in manifest.required_files if path not in content]:
        raise SpecError(
            f"{folder} has no {', '.join(missing)}, so it is no release for {manifest.provider!r}; {_BUILD_AGAIN}",
            file=folder / missing[0],
        )
    hashes = dict(zip(content, hash_files(list(content.values())), strict=True))
    tokenizer = hashes["tokenizer/tokenizer.json"]
    if manifest.tokenizer_sha256 != tokenizer:
        raise SpecError(
            f"{folder}: tokenizer_sha256 is {manifest.tokenizer_sha256}, but tokenizer/tokenizer.json has {tokenizer}; "
            "put the tokenizer there that the release was built with",
            file=folder / "tokenizer" / "tokenizer.json",
        )
    files = {path: {"sha256": hashes[path], "size": file.stat().st_size} for path, file in content.items()}
    sealed = validate(ReleaseManifest, manifest.model_dump() | {"files": files}, source=folder / MANIFEST_FILE)
    for file in content.values():
        sync(file)
    write_atomically(folder / MANIFEST_FILE, sealed.model_dump_json(indent=2) + "\n")
    return address(folder)


def _content(folder: Path) -> dict[str, Path]:
    """Return everything below a release's folder that is content, by relative path, sorted."""
    files: dict[str, Path] = {}
    for parent, folders, names in os.walk(folder):
        if os.access(parent, os.X_OK):  # of what cannot be entered, `_closed_folders` tells
            here = [Path(parent, name) for name in (*names, *folders)]
            files |= {
                path.relative_to(folder).as_posix(): path for path in here if path.is_symlink() or not path.is_dir()
            }
    return {name: files[name] for name in sorted(files, key=str.encode) if name not in _NOT_CONTENT}


def load_manifest(folder: Path) -> ReleaseManifest:
    """Read a release's manifest; its files are not looked at.

    Raises:
        SpecError: the folder is not a release, or not a finished one, or its manifest is not valid.
    """
    path = folder / MANIFEST_FILE
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError as exc:
        raise SpecError(f"the release {folder} {_what_it_is(folder)}", file=path) from exc
    except OSError as exc:
        raise SpecError(f"cannot read {path}: {exc.strerror}; {_BUILD_AGAIN}", file=path) from exc
    except ValueError as exc:
        raise SpecError(f"{path} is not JSON: {exc}; {_BUILD_AGAIN}", file=path) from exc
    manifest = validate(ReleaseManifest, data, source=path)
    if missing := [name for name in manifest.required_files if name not in manifest.files]:
        raise SpecError(f"{path} does not list {', '.join(missing)}; {_BUILD_AGAIN}", file=path)
    return manifest


def _what_it_is(folder: Path) -> str:
    """Return in words what a folder without a manifest is, and what to do with it."""
    if not folder.is_dir():
        return f"does not exist; {_BUILD_AGAIN}"
    names = {path.name for path in folder.iterdir()}
    if any(name.endswith(_ENGINE_FILES) for name in names):
        return (
            "has no release.json: it is an engine's folder, not a release; serve it as it is with engine.dir and "
            "tokenizer.dir, unverified, or make a release with `trireme build`"
        )
    if "config.json" in names and any(name.endswith(_WEIGHT_FILES) for name in names):
        return (
            "has no release.json: it is a checkpoint, not a release; make one of it with `trireme build RECIPE "
            f"--checkpoint {folder} --out DIR` (docs/build.md), or serve it as it is with engine.dir, unverified, and "
            "provider pytorch or vllm"
        )
    return f"has no release.json: not a release, or one that was not finished; {_BUILD_AGAIN}"


def address(folder: Path) -> str:
    """Return the name of a release's content: the SHA-256 of its sorted file list, the manifest among the files.

    The name is made from the manifest alone; `verify` says whether the files are those that the manifest lists.

    Raises:
        SpecError: the folder is not a release, or not a finished one, or its manifest is not valid.
    """
    hashes = {path: file.sha256 for path, file in load_manifest(folder).files.items()}
    return hash_listing(hashes | {MANIFEST_FILE: hash_file(folder / MANIFEST_FILE)})


def verify(folder: Path, *, is_quick: bool = False, memory: HashMemory | None = None) -> ReleaseManifest:
    """Check that a release has exactly the files that its manifest lists.

    Args:
        folder: the release.
        is_quick: compare sizes, and read nothing.
        memory: files that have not changed since they were hashed last are not read either.

    Raises:
        SpecError: `load_manifest` refuses the folder, or files are missing, altered or too many; it names them.
    """
    manifest = load_manifest(folder)
    refuse(compare_files(folder, manifest, is_quick=is_quick, memory=memory), source=folder)
    return manifest


def compare_files(
    folder: Path, manifest: ReleaseManifest, *, is_quick: bool = False, memory: HashMemory | None = None
) -> list[Finding]:
    """Return how the files of a release differ from those that its manifest lists; arguments are those of `verify`."""
    content = _content(folder)
    closed = _closed_folders(folder)
    findings = [_finding(name, why, "a folder that can be listed", _LET_READ) for name, why in closed.items()]
    findings += [
        _finding(name, "a file that the manifest does not list", "none", "move it out of the release")
        for name in content.keys() - manifest.files.keys()
    ]
    same_size: dict[str, Path] = {}
    for name, wanted in manifest.files.items():
        path = content.get(name)
        if any(name.startswith(f"{parent}/") for parent in closed):
            continue
        if path is None:
            findings.append(_finding(name, "no such file", f"{wanted.size} bytes", _BUILD_AGAIN))
        elif path.is_symlink() or not path.is_file():
            findings.append(_finding(name, "something that is not a plain file", "a file", _BUILD_AGAIN))
        elif not os.access(path, os.R_OK):
            findings.append(_finding(name, os.strerror(errno.EACCES), "a file that can be read", _LET_READ))
        elif (size := path.stat().st_size) != wanted.size:
            findings.append(_finding(name, f"{size} bytes", f"{wanted.size} bytes", _BUILD_AGAIN))
        else:
            same_size[name] = path
    if not is_quick:
        hashes = hash_files(list(same_size.values()), memory=memory)
        findings += [
            _finding(name, f"SHA-256 {found}", manifest.files[name].sha256, _BUILD_AGAIN)
            for name, found in zip(same_size, hashes, strict=True)
            if found != manifest.files[name].sha256
        ]
    return sorted(findings, key=lambda finding: finding.check)


def _closed_folders(folder: Path) -> dict[str, str]:
    """Return the folders below `folder` that cannot be listed or entered, by relative path, and why."""
    closed: dict[str, str] = {}

    def note(error: OSError) -> None:
        closed[Path(error.filename).relative_to(folder).as_posix()] = error.strerror or str(error)

    for path, _, _ in os.walk(folder, onerror=note):
        if not os.access(path, os.X_OK):
            closed[Path(path).relative_to(folder).as_posix()] = os.strerror(errno.EACCES)
    return closed


def _finding(name: str, found: str, wanted: str, next_step: str) -> Finding:
    return Finding(check=f"file {name}", found=found, wanted=wanted, next_step=next_step)


def find_release(engine_dir: Path) -> Path | None:
    """Return the release that an engine's folder belongs to: its parent, if a manifest lies there; else None.

    A `release.json` without `manifest_version` is a model repository's, with an engine put beside it.

    Raises:
        SpecError: the file is not JSON.
    """
    path = engine_dir.resolve().parent / MANIFEST_FILE
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_bytes())
    except ValueError as exc:
        raise SpecError(f"{path} is not JSON: {exc}; {_BUILD_AGAIN}", file=path) from exc
    return path.parent if isinstance(data, dict) and "manifest_version" in data else None
