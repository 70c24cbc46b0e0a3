# SPDX-License-Identifier: Apache-2.0
"""What Prometheus sees of requests, on the real server's metrics page."""

import pytest
from raw_calls import stream
from running_server import RunningServer
from test_cancellation import wait_until

ASK: dict[str, object] = {"text_input": "What is the capital of France?", "max_tokens": 12, "stream": True}


@pytest.mark.parametrize(
    ("asked", "counted_at"),
    [(name, name) for name in ("ensemble", "tensorrt_llm_bls")] + [("ensemble_graph", "tensorrt_llm")],
)
def test_a_request_is_counted_once_with_its_tokens_and_latencies(
    simulated: RunningServer, asked: str, counted_at: str
) -> None:
    labels = {"model": counted_at, "version": "1"}

    def counts() -> list[float]:
        histograms = [
            simulated.metric(f"{name}_count", **labels)
            for name in (
                "trireme_time_to_first_token_seconds",
                "trireme_time_per_output_token_seconds",
                "trireme_e2e_request_latency_seconds",
                "trireme_request_queue_time_seconds",
                "nv_llm_input_token_len",
                "nv_llm_output_token_len",
            )
        ]
        tokens = simulated.metric("trireme_generation_tokens_total", **labels)
        return [*histograms, simulated.metric("trireme_requests_total", finish_reason="length", **labels), tokens]

    before = counts()
    list(stream(simulated.url, asked, ASK))
    wait_until(lambda: counts() == [*(value + 1 for value in before[:-1]), before[-1] + 12], 5)
    assert simulated.metric("trireme_time_to_first_token_seconds_bucket", le="0.001", **labels) <= before[0] + 1
