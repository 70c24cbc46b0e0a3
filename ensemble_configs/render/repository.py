# SPDX-License-Identifier: Apache-2.0
"""The model repository that Triton loads: its files, and how they are written where they differ.

Rendering is pure (`render_repository`); writing never touches a file whose text is right, because Triton reloads a
model whose files have changed.
"""

import importlib.util
import py_compile
import shutil
from pathlib import Path

from ensemble_configs.render.embedding_config import ADAPTER, EMBEDDING_VERSION, render_embedding_model
from ensemble_configs.render.model_configs import GENERATED, render_configs, render_extra_config
from ensemble_configs.render.release_file import RELEASE_FILE, render_release
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.deployment_checks import unbounded_caches
from ensemble_configs.spec.model_names import CANARY, GRAPH, role_of
from ensemble_configs.spec.model_spec import ExtraModelSpec, ModelSpec
from ensemble_configs.spec.release_spec import ReleaseSpec
from trireme.base.errors import SpecError
from trireme.base.project_files import project_file

# The repository that is committed: the default deployment, release 1.
DEFAULT_REPOSITORY = project_file("model_repository")
DEFAULT_DEPLOYMENT = project_file("ensemble_configs/deployments/demo_cpu.yaml")


def render_repository(spec: DeploymentSpec, *, root: Path, source: str) -> dict[Path, str]:
    """Return path (below `root`) and text of every generated file of the repository that will lie at `root`.

    Raises:
        SpecError: engines would take what memory the others happen to leave, or an extra model cannot be taken.
    """
    for clash in unbounded_caches(spec.models):
        raise SpecError(clash, field="engine.num_kv_blocks")
    files: dict[Path, str] = {}
    for model in spec.models:
        configs = render_configs(model, spec.triton, source=source, parameters=spec.adapter_parameters)
        files |= {Path(name) / "config.pbtxt": text for name, text in configs.items()}
        for step, release in _versions(model):
            folder = Path(model.triton_prefix + step) / str(release.release)
            files[folder / RELEASE_FILE] = render_release(release, folder=(root / folder).resolve())
    for embedding in spec.embedding_models:
        files |= render_embedding_model(embedding, root=root, source=source, parameters=spec.adapter_parameters)
    for extra in spec.extra_models:
        text = render_extra_config(extra, _own_config(extra), source=source)
        files[Path(extra.name) / "config.pbtxt"] = text
    return files


def write_repository(spec: DeploymentSpec, *, root: Path, source: str) -> list[Path]:
    """Make `root` the model repository of a deployment.

    The adapters' `model.py` are copied from the committed repository, those of embedding models from
    `serving.embeddings`; the version folders of extra models are links to
    the user's. Rendered models that the deployment does not have are removed, for Triton would load them.

    Returns:
        The paths below `root` that were written.

    Raises:
        SpecError: there are other folders in `root`, or an extra model cannot be taken; nothing was changed.
    """
    files = {path: text.encode() for path, text in render_repository(spec, root=root, source=source).items()}
    for model in spec.models:
        for step, release in _versions(model):
            adapter = DEFAULT_REPOSITORY / role_of(step) / "1" / "model.py"
            files[Path(model.triton_prefix + step) / str(release.release) / "model.py"] = adapter.read_bytes()
        # Triton wants a version folder of an ensemble too, and git keeps no empty one.
        if GRAPH in model.steps:
            files[Path(model.triton_prefix + GRAPH) / str(model.release) / ".keep"] = b""
    for embedding in spec.embedding_models:
        files[Path(embedding.name) / str(EMBEDDING_VERSION) / "model.py"] = ADAPTER.read_bytes()
    links = {
        Path(extra.name) / folder.name: folder for extra in spec.extra_models for folder in _version_folders(extra)
    }
    _remove_strangers(root, keep={path.parts[0] for path in files})
    written = [path for path, content in files.items() if _write(root / path, content)]
    for path in files:
        if path.name == "model.py":
            _compile(root / path, is_new=path in written)
    return written + [path for path, target in links.items() if _link(root / path, target)]


def _versions(model: ModelSpec) -> list[tuple[str, ReleaseSpec]]:
    """Return the version folders that hold an adapter, each with its step and release."""
    return [
        (step, release)
        for step in model.steps
        for release in model.releases
        if step != GRAPH and (step != CANARY or release.release == model.canary)
    ]


def _own_config(extra: ExtraModelSpec) -> str:
    """Return the text of the user's `config.pbtxt`.

    Raises:
        SpecError: the file is missing, or says what the deployment says.
    """
    path = extra.dir / "config.pbtxt"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else f"{exc.reason} at byte {exc.start}"
        raise SpecError(
            f"extra_models: cannot read {path} of {extra.name}: {reason}; name a folder with config.pbtxt and version "
            "folders, from the deployment's own folder",
            file=path,
        ) from exc
    if not _version_folders(extra):
        raise SpecError(f"extra_models: {extra.dir} of {extra.name} has no version folder, such as 1", file=extra.dir)
    said = _without_comments(text)
    if "rate_limiter" in said:
        raise SpecError(
            f"extra_models: {path} has a rate_limiter, which would not be counted; move it to {extra.name}'s "
            "rate_limiter in the deployment, and take instance_group out",
            file=path,
        )
    if extra.rate_limiter is not None and "instance_group" in said:
        raise SpecError(
            f"extra_models: {path} has an instance_group, and {extra.name}'s rate_limiter needs one of its own; take "
            "it out, and set instances and kind in the deployment",
            file=path,
        )
    return text


def _without_comments(text: str) -> str:
    return "\n".join(line.partition("#")[0] for line in text.splitlines())


def _version_folders(extra: ExtraModelSpec) -> list[Path]:
    return sorted(path for path in extra.dir.iterdir() if path.is_dir() and path.name.isdecimal())


def _remove_strangers(root: Path, *, keep: set[str]) -> None:
    folders = [path for path in root.iterdir() if path.is_dir() and path.name not in keep] if root.is_dir() else []
    foreign = sorted(path.name for path in folders if not _is_rendered(path))
    if foreign:
        raise SpecError(
            f"{root} holds {', '.join(foreign)}; Triton takes every folder for a model, so name another folder",
            file=root,
        )
    for path in folders:
        shutil.rmtree(path)


def _is_rendered(folder: Path) -> bool:
    config = folder / "config.pbtxt"
    return not folder.is_symlink() and config.is_file() and config.read_text(errors="replace").startswith(GENERATED)


def _write(path: Path, content: bytes) -> bool:
    if path.is_file() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return True


def _compile(adapter: Path, *, is_new: bool) -> None:
    """Compile an adapter to bytecode, if it is new or was not compiled.

    A stub that writes bytecode by itself changes its version's folder, and Triton would load that version anew at the
    next call that names the model.
    """
    compiled = Path(importlib.util.cache_from_source(str(adapter)))
    if is_new or not compiled.exists():
        py_compile.compile(str(adapter))


def _link(path: Path, target: Path) -> bool:
    if path.is_symlink() and path.readlink() == target:
        return False
    path.unlink(missing_ok=True)
    path.symlink_to(target)
    return True
