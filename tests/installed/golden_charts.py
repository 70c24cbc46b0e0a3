# SPDX-License-Identifier: Apache-2.0
"""The writer of what the chart makes of its examples, for `tests/unit/helm/test_chart_examples.py`: `make golden`."""

import sys

from chart_here import EXAMPLES, GOLDEN, golden_text

if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name in EXAMPLES:
        (GOLDEN / f"{name}.yaml").write_text(golden_text(name))
        sys.stdout.write(f"{GOLDEN / name}.yaml\n")
