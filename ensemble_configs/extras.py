# SPDX-License-Identifier: Apache-2.0
"""The command that installs an optional part of the project, for errors that miss a package.

It names the project's own files: on the public index `trireme` is somebody else's, and would shadow this one.
"""

from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent


def how_to_install(extra: str) -> str:
    """Return what to type for the packages of an extra of pyproject.toml."""
    if (_ROOT / "pyproject.toml").is_file():
        return f"pip install '{_ROOT}[{extra}]'"
    return f"in a checkout of the project: pip install '.[{extra}]'"
