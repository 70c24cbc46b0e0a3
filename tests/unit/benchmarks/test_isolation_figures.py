# SPDX-License-Identifier: Apache-2.0
"""The committed figures of the isolation benchmark are those of its committed records."""

import json
from pathlib import Path

from benchmarks.isolation import figures_of
from benchmarks.overload_figures import read_records
from benchmarks.support.report import RESULTS


def test_the_figures_follow_from_the_records() -> None:
    newest = max(RESULTS.glob("isolation_*.jsonl.gz"))
    committed = json.loads(Path(str(newest).removesuffix(".jsonl.gz") + ".json").read_text())
    assert committed == json.loads(json.dumps(figures_of(*read_records(newest))))
