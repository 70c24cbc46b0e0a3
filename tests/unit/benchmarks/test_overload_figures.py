# SPDX-License-Identifier: Apache-2.0
"""The committed figures of the overload benchmark are those of its committed records."""

import json
from pathlib import Path

import pytest

from benchmarks.overload_figures import Header, Record, of_load, read_records
from benchmarks.support.report import RESULTS

NEWEST = max(RESULTS.glob("overload_*.jsonl.gz"))


@pytest.mark.parametrize("kind", ["admission", "none"])
def test_the_figures_follow_from_the_records(kind: str) -> None:
    header, records = read_records(NEWEST)
    own = [one for one in records if (one.shape, one.kind, one.load) == ("poisson", kind, 3.0)]
    committed = json.loads(Path(str(NEWEST).removesuffix(".jsonl.gz") + ".json").read_text())
    assert committed["loads"]["poisson"][kind]["3"] == json.loads(json.dumps(of_load(header, own)))


def test_an_answer_is_good_within_both_targets_and_only_then() -> None:
    header = Header(
        ttft_target_ms=100.0, tpot_target_ms=20.0, capacity_per_s=1.0, engine={}, admission={}, seed=1, environment={}
    )

    def record(first_ms: float, last_ms: float, end: str = "done") -> Record:
        return Record(
            priority=1, num_prompt_tokens=1, max_tokens=11, first_ms=first_ms, last_ms=last_ms, num_tokens=11, end=end
        )

    assert record(100.0, 300.0).is_good(header)
    assert not record(101.0, 300.0).is_good(header)
    assert not record(100.0, 301.0).is_good(header)
    assert not record(50.0, 100.0, "DEADLINE").is_good(header)
