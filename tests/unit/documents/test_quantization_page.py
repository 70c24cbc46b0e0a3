# SPDX-License-Identifier: Apache-2.0
"""`docs/quantization.md` says what the committed figures say."""

import pytest

from documents.results import latest


def test_the_committed_releases_have_the_sizes_that_were_promised() -> None:
    rows = {row["name"]: row for row in latest("quantization_demo_cpu")["releases"]}
    for row in rows.values():
        assert row["bytes"] == pytest.approx(row["predicted_bytes"], rel=0.03)
    whole = rows["demo-fp16"]["linear_bytes"]
    assert whole / rows["demo-int8"]["linear_bytes"] == pytest.approx(2, rel=0.03)
    assert whole / rows["demo-int4"]["linear_bytes"] >= 3.5


def test_every_committed_release_passed_its_own_recipe() -> None:
    rows = latest("quantization_demo_cpu")["releases"]
    assert [row["quality"]["passed"] for row in rows] == [None, True, True, True]  # the base has no limits
