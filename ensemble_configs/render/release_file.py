# SPDX-License-Identifier: Apache-2.0
"""The file `<version>/release.json`: the parts of one release of the models, read by every adapter at load."""

import json
import os
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from ensemble_configs.spec.base import Spec
from ensemble_configs.spec.release_spec import ReleaseSpec
from ensemble_configs.spec.validation import validate
from trireme.base.errors import SpecError

RELEASE_FILE = "release.json"

S = TypeVar("S", bound=Spec)


def render_release(release: ReleaseSpec, *, folder: Path) -> str:
    """Return the text of the `release.json` that lies in `folder`.

    Paths in it are relative to that folder, so a tree can move.
    """
    return json_with_relative_paths(release, folder=folder)


def json_with_relative_paths(model: BaseModel, *, folder: Path) -> str:
    """Return typed data as JSON for a file in `folder`, its paths relative to that."""
    return _with_relative_paths(model, folder).model_dump_json(indent=2, exclude_none=True) + "\n"


def _with_relative_paths(model: BaseModel, folder: Path) -> BaseModel:
    changes: dict[str, object] = {}
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, Path):
            changes[name] = Path(os.path.relpath(value, folder))
        elif isinstance(value, BaseModel):
            changes[name] = _with_relative_paths(value, folder)
    return model.model_copy(update=changes)


def load_release(folder: Path) -> ReleaseSpec:
    """Return the release in one version folder of a model.

    Raises:
        SpecError: the file is missing or not what it should be.
    """
    return load_rendered(ReleaseSpec, folder / RELEASE_FILE)


def load_rendered(kind: type[S], path: Path) -> S:
    """Return typed data from a file of JSON in a version folder.

    Raises:
        SpecError: the file is missing or not what it should be.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as exc:
        raise SpecError(f"cannot read {path}: {exc.strerror}; write it with `trireme render`", file=path) from exc
    return validate(kind, _json(text, path), source=path)


def _json(text: str, path: Path) -> object:
    try:
        return json.loads(text)
    except ValueError as exc:
        raise SpecError(f"{path} is not JSON: {exc}", file=path) from exc
