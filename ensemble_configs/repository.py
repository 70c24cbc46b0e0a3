# SPDX-License-Identifier: Apache-2.0
"""The model repository that Triton loads: which files it has, and writing them where they differ.

Rendering is pure (`render_repository`); writing never touches a file whose text is right, because Triton reloads a
model whose files have changed.
"""

import shutil
from pathlib import Path

from ensemble_configs.deployment import DeploymentSpec
from ensemble_configs.errors import SpecError
from ensemble_configs.model_configs import GENERATED, GRAPH, PYTHON_MODELS, render_configs
from ensemble_configs.release import RELEASE_FILE, render_release

# The repository that is committed: the default deployment, release 1.
DEFAULT_REPOSITORY = Path(__file__).resolve().parent.parent / "model_repository"
DEFAULT_DEPLOYMENT = Path(__file__).resolve().parent / "deployments" / "demo_cpu.yaml"


def render_repository(spec: DeploymentSpec, *, root: Path, source: str) -> dict[Path, str]:
    """Path (below `root`) and text of every generated file of the repository that will lie at `root`."""
    files = {Path(model) / "config.pbtxt": text for model, text in render_configs(spec, source=source).items()}
    for model in PYTHON_MODELS:
        folder = Path(model) / str(spec.release)
        files[folder / RELEASE_FILE] = render_release(spec, folder=(root / folder).resolve())
    return files


def write_repository(spec: DeploymentSpec, *, root: Path, source: str) -> list[Path]:
    """Make `root` the model repository of a deployment; returns the paths (below `root`) that were written.

    The adapters' `model.py` are copied from the committed repository. Rendered models that the deployment does not have
    are removed, for Triton would load them.

    Raises:
        SpecError: there are other folders in `root`; nothing was changed.
    """
    files = {path: text.encode() for path, text in render_repository(spec, root=root, source=source).items()}
    for model in PYTHON_MODELS:
        adapter = DEFAULT_REPOSITORY / model / "1" / "model.py"
        files[Path(model) / str(spec.release) / "model.py"] = adapter.read_bytes()
    _remove_strangers(root, keep={path.parts[0] for path in files})
    # Triton wants a version folder of an ensemble too, and git keeps no empty one.
    files[Path(GRAPH) / str(spec.release) / ".keep"] = b""
    return [path for path, content in files.items() if _write(root / path, content)]


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
