# SPDX-License-Identifier: Apache-2.0
"""A stand-in of `build_engines/planner/estimators/aisimulate_worker.py`, which answers what was recorded of it.

As a program: `python aisimulate_recorded.py`. `tests/unit/build_engines/planner/estimators/test_aisimulate_real.py`
compares the recording with the real one (`make soak`).
"""

import json
import sys
from pathlib import Path
from typing import Any

RECORDING = Path(__file__).parents[1] / "data" / "aisimulate_answers.json"


def recording() -> list[dict[str, Any]]:
    """Return pairs of a question, without its folder, and the answer."""
    pairs: list[dict[str, Any]] = json.loads(RECORDING.read_text(encoding="utf-8"))
    return pairs


def main() -> None:
    """Answer questions until the input ends."""
    pairs = recording()
    for line in sys.stdin:
        question = json.loads(line)
        assert (Path(question.pop("model")) / "config.json").is_file()
        [answer] = [pair["answer"] for pair in pairs if pair["question"] == question]
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
