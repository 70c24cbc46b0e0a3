# SPDX-License-Identifier: Apache-2.0
"""The reading of W3C trace context: valid and invalid values, and the decision about sampling."""

import pytest

from serving.telemetry.trace_context import TraceContext, new_trace, read_context

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(("flags", "is_sampled"), [("00", False), ("01", True), ("03", True), ("02", False)])
def test_a_context_is_read_and_written_again(flags: str, is_sampled: bool) -> None:
    context = read_context(f"00-{TRACE}-{SPAN}-{flags}", "vendor=1")
    assert context == TraceContext(int(TRACE, 16), int(SPAN, 16), is_sampled, "vendor=1")
    assert context.traceparent == f"00-{TRACE}-{SPAN}-{int(is_sampled):02x}"


def test_a_later_version_may_say_more() -> None:
    assert read_context(f"01-{TRACE}-{SPAN}-01-more") is not None


@pytest.mark.parametrize(
    "sent",
    [
        None,
        7,
        "",
        "nonsense",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
    ],
)
def test_what_cannot_be_read_is_no_context(sent: object) -> None:
    assert read_context(sent) is None


def test_an_endless_state_is_left_out() -> None:
    context = read_context(f"00-{TRACE}-{SPAN}-01", "a=" + "x" * 600)
    assert context is not None
    assert context.state == ""


def test_a_child_is_another_span_of_the_same_trace() -> None:
    parent = TraceContext(5, 6, is_sampled=True, state="a=b")
    child = parent.child()
    assert (child.trace_id, child.is_sampled, child.state) == (5, True, "a=b")
    assert child.span_id not in (0, 6)


@pytest.mark.parametrize(("ratio", "least", "most"), [(0.0, 0, 0), (0.25, 150, 350), (1.0, 1000, 1000)])
def test_so_many_new_traces_are_sampled(ratio: float, least: int, most: int) -> None:
    assert least <= sum(new_trace(ratio).is_sampled for _ in range(1000)) <= most
