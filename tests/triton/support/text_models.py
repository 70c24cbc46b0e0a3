# SPDX-License-Identifier: Apache-2.0
"""The ways from text to text, for long tests of what is not the model's own: one of them by default, all in soak."""

import pytest

ONE_AND_IN_SOAK_ALL = [
    "ensemble",
    *(pytest.param(name, marks=pytest.mark.soak) for name in ("ensemble_graph", "tensorrt_llm_bls")),
]
