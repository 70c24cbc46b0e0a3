# SPDX-License-Identifier: Apache-2.0
"""`docs/gateway.md` says what the committed figures say, and those are what was promised."""

from documents.results import latest
from documents.serving_pages.gateway_page import cost_table


def test_the_gateway_costs_no_more_than_was_promised() -> None:
    rows = {row["streams"]: row for row in latest("gateway_cost")["rows"]}
    assert rows[1]["ttft_added_ms"]["median"] <= 3.0
    assert rows[128]["chunks_over_envoy"]["median"] >= 0.9


def test_every_number_of_streams_has_a_row() -> None:
    result = latest("gateway_cost")
    table = cost_table(result)
    for row in result["rows"]:
        assert f"| {row['streams']} |" in table
