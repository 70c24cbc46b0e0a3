# SPDX-License-Identifier: Apache-2.0
"""The requests that Prometheus sees, on the real server's metrics page."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from raw_calls import StreamFailed, stream
from running_server import RunningServer
from waiting import wait_until

ASK: dict[str, object] = {"text_input": "What is the capital of France?", "max_tokens": 12, "stream": True}

DRAFT_OUTPUTS = ["text_output", "acceptance_rate", "total_accepted_draft_tokens", "total_draft_tokens"]


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

    wait_until(lambda: simulated.num_streams() == 0, 10)
    time.sleep(0.5)  # what others asked before is counted in bunches
    before = counts()
    list(stream(simulated.url, asked, ASK))
    wait_until(lambda: counts() == [*(value + 1 for value in before[:-1]), before[-1] + 12], 5)
    assert simulated.metric("trireme_time_to_first_token_seconds_bucket", le="0.001", **labels) <= before[0] + 1


ENGINE = {"model": "tensorrt_llm", "version": "1"}
DEMO = Path(__file__).resolve().parents[3] / "examples/demo_model/openvino"


def test_preemptions_running_and_waiting_requests_and_the_use_of_the_kv_cache(
    start_server: Callable[..., RunningServer],
) -> None:
    # Blocks of 16 tokens: two requests of 100 tokens grow beyond 8 blocks, and the third may not run beside them.
    engine = {"provider": "simulated", "step_ms": 20.0, "num_kv_blocks": 8, "max_num_seqs": 2, "max_seq_len": 128}
    server = start_server(engine=engine)
    asked = ASK | {"max_tokens": 100}
    with ThreadPoolExecutor(3) as threads:
        answers = [threads.submit(list, stream(server.url, "ensemble", asked)) for _ in range(3)]
        wait_until(lambda: server.metric("trireme_requests_waiting", **ENGINE) >= 1, 10)
        wait_until(lambda: 0 < server.metric("trireme_requests_running", **ENGINE) <= 2, 10)
        wait_until(lambda: 0.5 <= server.metric("trireme_kv_cache_usage_fraction", **ENGINE) <= 1, 10)
        assert all(answer.result() for answer in answers)
    assert server.metric("trireme_preemptions_total", **ENGINE) >= 1
    for gauge in ("trireme_requests_running", "trireme_requests_waiting", "trireme_kv_cache_usage_fraction"):
        wait_until(lambda gauge=gauge: server.metric(gauge, **ENGINE) == 0, 5)  # type: ignore[misc]


def test_accepted_drafts_and_ends_are_those_that_clients_were_told(start_server: Callable[..., RunningServer]) -> None:
    engine = {"provider": "openvino", "dir": str(DEMO / "target"), "is_prefix_caching": False}
    server = start_server(engine=engine | {"draft_dir": str(DEMO / "draft")})
    told = {"accepted": 0, "drafted": 0}
    ask = ASK | {"stream": False, "return_perf_metrics": True, "max_tokens": 40, "exclude_input_in_output": True}
    for prompt in ("Once upon a time", "What is 23 + 45?"):
        [reply] = stream(server.url, "ensemble", ask | {"text_input": prompt}, outputs=DRAFT_OUTPUTS)
        told["accepted"] += int(reply["total_accepted_draft_tokens"].item())
        told["drafted"] += int(reply["total_draft_tokens"].item())
        assert reply["acceptance_rate"].item() > 0
    labels = {"model": "ensemble", "version": "1"}
    wait_until(lambda: server.metric("trireme_draft_tokens_total", **labels) == told["drafted"], 5)
    assert server.metric("trireme_accepted_draft_tokens_total", **labels) == told["accepted"] > 0
    ends = [server.metric("trireme_requests_total", finish_reason=end, **labels) for end in ("stop", "length")]
    assert sum(ends) == 2
    with pytest.raises(StreamFailed, match="samples from another distribution"):
        list(stream(server.url, "ensemble", ASK | {"top_p": 0.9}))
    wait_until(lambda: server.metric("trireme_requests_total", finish_reason="error", **labels) == 1, 5)


def test_prompt_tokens_from_the_prefix_cache_are_counted_exactly(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(engine={"provider": "openvino", "dir": str(DEMO / "target"), "max_num_batched_tokens": 64})
    asked, labels = "ensemble", {"model": "ensemble", "version": "1"}
    words = " ".join(f"The {name} went home." for name in ("fox", "dog", "cat", "bird", "frog") * 8)
    once = ASK | {"text_input": words, "end_id": -1}

    def computed() -> float:
        return server.metric("trireme_engine_prompt_tokens_total", **ENGINE)

    def counts() -> tuple[float, ...]:
        names = ("prompt_tokens", "prefix_cache_queries", "cached_prompt_tokens")
        return tuple(server.metric(f"trireme_{name}_total", **labels) for name in names)

    with pytest.raises(AssertionError):  # an engine that has told nothing has not reused nothing
        counts()
    list(stream(server.url, asked, once | {"max_tokens": 1}))
    wait_until(lambda: server.metric("trireme_prompt_tokens_total", **labels) > 0, 5)
    num_tokens = server.metric("trireme_prompt_tokens_total", **labels)
    wait_until(lambda: counts() == (num_tokens, num_tokens, 0), 5)
    wait_until(lambda: computed() == num_tokens, 5)
    # With one token made, all of the prompt is in the cache as it was asked: all but the last token is found.
    list(stream(server.url, asked, once | {"max_tokens": 2}))
    wait_until(lambda: counts() == (2 * num_tokens, 2 * num_tokens, num_tokens - 1), 5)
    # The second answer went on in the last block, so only whole ones are found; so too with another end.
    for more, cached in (("", num_tokens // 32 * 32), (" And then?", num_tokens // 32 * 32)):
        before = counts()
        list(stream(server.url, asked, once | {"text_input": words + more, "max_tokens": 2}))
        wait_until(lambda before=before, cached=cached: counts()[2] == before[2] + cached, 5)  # type: ignore[misc]
    wait_until(lambda: computed() == counts()[0] - counts()[2], 5)
    reused = server.metric("nv_trt_llm_kv_cache_block_metrics", **ENGINE, kv_cache_block_type="reused")
    assert reused == (num_tokens - 1) // 32 + 2 * (num_tokens // 32)


def test_the_engines_steps_are_counted_and_what_it_is_is_shown(start_server: Callable[..., RunningServer]) -> None:
    engine = {"provider": "simulated", "step_ms": 5.0, "max_num_seqs": 8}
    server = start_server(engine=engine)

    def counted(name: str) -> float:
        return server.metric(f"trireme_engine_{name}", **ENGINE)

    list(stream(server.url, "ensemble", ASK | {"max_tokens": 40}))
    wait_until(lambda: counted("output_tokens_total") == 40, 5)
    prompt = int(counted("prompt_tokens_total"))
    assert (counted("steps_total"), counted("prefill_steps_total"), counted("batch_sequences_total")) == (40, 1, 40)
    assert prompt > 1
    assert counted("kv_read_tokens_total") == sum(range(prompt + 1, prompt + 40))
    assert 0.18 <= counted("step_seconds_total") < 2  # 40 steps of 5 ms, less what the loop does between them
    assert counted("prefill_step_seconds_total") < counted("step_seconds_total")
    assert (counted("max_num_seqs"), counted("up")) == (8, 1)
    server.engine_process().kill()
    wait_until(lambda: counted("up") == 0, 5)
    assert counted("steps_total") == 40, "a counter does not go back"
    wait_until(lambda: counted("up") == 1, 20)


def test_upstream_s_gauges_are_on_the_page_from_the_engines_that_can_tell(simulated: RunningServer) -> None:
    list(stream(simulated.url, "ensemble", ASK))
    shown = {
        ("nv_trt_llm_request_metrics", "request_type"): ["active", "max", "scheduled", "context", "waiting"],
        ("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type"): [
            "max", "free", "used", "tokens_per", "reused", "fraction",
        ],
        ("nv_trt_llm_inflight_batcher_metrics", "inflight_batcher_specific_metric"): [
            "total_context_tokens", "generation_requests",
        ],
        ("nv_trt_llm_general_metrics", "general_type"): ["timestamp", "iteration_counter"],
    }  # fmt: skip
    for (family, label), names in shown.items():
        for name in names:
            simulated.metric(family, **ENGINE, **{label: name})
    assert simulated.metric("nv_trt_llm_kv_cache_block_metrics", **ENGINE, kv_cache_block_type="tokens_per") == 16
    assert simulated.metric("nv_trt_llm_general_metrics", **ENGINE, general_type="iteration_counter") >= 12
    told_us = simulated.metric("nv_trt_llm_general_metrics", **ENGINE, general_type="timestamp")
    assert abs(told_us / 1e6 - time.time()) < 60
    labels = {"model": "ensemble", "version": "1", "response_metric_type": "total_output_tokens"}
    wait_until(lambda: simulated.metric("nv_llm_output_token_len_count", **labels) >= 1, 5)
