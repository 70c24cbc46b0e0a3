# SPDX-License-Identifier: Apache-2.0
"""The fakes of Triton's stub, imported: what needs `triton_python_backend_utils` is imported after this."""

import sys
from pathlib import Path

# Triton puts the real module on the path of its stubs. Remove when pyproject.toml has `pythonpath = ["tests/fakes"]`.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "fakes"))

import triton_python_backend_utils as pb_utils
from ensemble_by_hand import AdapterError, EnsembleByHand, load_adapter

__all__ = ["AdapterError", "EnsembleByHand", "load_adapter", "pb_utils"]
