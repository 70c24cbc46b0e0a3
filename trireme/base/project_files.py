# SPDX-License-Identifier: Apache-2.0
"""The project's files that are no modules: the model repository, the chart, the demo model."""

import importlib.resources
from pathlib import Path

# The folder on the import path: a checkout, or site-packages.
CODE_ROOT = Path(__file__).resolve().parent.parent.parent
IS_CHECKOUT = (CODE_ROOT / "model_repository").is_dir()
# The wheel has them in the package, in the same folders (setup.py).
FILES_ROOT = CODE_ROOT if IS_CHECKOUT else Path(str(importlib.resources.files("trireme") / "data"))


def project_file(path: str) -> Path:
    """Return the path of a file or folder of the project; `path` is relative to a checkout: ``helm/trireme``."""
    return FILES_ROOT / path


def here_or_ours(path: Path) -> Path:
    """Return a path that was given, or the project's own file of that name where there is none here.

    A user without a checkout finds `examples/cost/measured.yaml` of the documentation by it.
    """
    ours = FILES_ROOT / path
    return ours if not path.exists() and ours.exists() else path
