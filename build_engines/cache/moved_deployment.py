# SPDX-License-Identifier: Apache-2.0
"""A deployment file whose releases lie elsewhere than the original file says.

Copying releases is for `build_engines.cache.release_cache`.
"""

from collections.abc import Mapping
from pathlib import Path

import yaml

from ensemble_configs.spec.deployment import DeploymentSpec


def release_dirs(spec: DeploymentSpec) -> list[Path]:
    """Return the built releases that a deployment names, of all its models, each once."""
    return list(dict.fromkeys(release.release_dir for release in spec.releases if release.release_dir is not None))


def moved_deployment(spec: DeploymentSpec, folders: Mapping[Path, Path]) -> str:
    """Return the text of a deployment file with the releases, and every path into one of them, replaced.

    Args:
        spec: its paths are absolute, as `load_deployment` gives them.
        folders: the new folder of each release, by its old one.
    """
    data = _moved(spec.model_dump(exclude_unset=True), folders)
    said = "# Written by trireme pull: each release_dir is in the cache of a node.\n"
    return said + yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def _moved(value: object, folders: Mapping[Path, Path]) -> object:
    match value:
        case Path():
            # Of two that lie in each other, the inner one.
            inside = [old for old in folders if value.is_relative_to(old)]
            old = max(inside, key=lambda path: len(path.parts), default=None)
            return str(value if old is None else folders[old] / value.relative_to(old))
        case dict():
            return {key: _moved(each, folders) for key, each in value.items()}
        case list() | tuple():
            return [_moved(each, folders) for each in value]
    return value
