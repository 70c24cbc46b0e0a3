# SPDX-License-Identifier: Apache-2.0
"""The trace of each request, from the client through Triton to the engine, as a real OTLP receiver gets it."""

import asyncio
import contextlib
import json
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import Tracer
from otlp_receiver import OtlpReceiver, ReceivedSpan
from raw_calls import StreamFailed, engine_request, stream
from running_server import ENDPOINTS, RunningServer, deployment_text
from waiting import wait_until

from clients.streaming import AsyncTritonClient, GenerateRequest, TritonClient
from trireme.base.errors import RequestError, ServingError, Unavailable

PROMPT = "Unmistakable zebras whisper"
PIECES = ("nmistakabl", "zebras", "whisper")
ASK: dict[str, object] = {"text_input": PROMPT, "max_tokens": 8, "stream": True, "exclude_input_in_output": True}
PARENT = "00-{trace}-b7ad6b7169203331-{flags}"
ENGINE_EVENTS = ["queued", "admitted", "scheduled", "first_token", "last_token", "done"]


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as listening:
        yield listening


@pytest.fixture(scope="module")
def traced(receiver: OtlpReceiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Yield a server of one request at a time, and one that waits; all are traced and have a line in the log."""
    text = deployment_text(
        "traced",
        endpoints=ENDPOINTS,
        engine={"provider": "simulated", "step_ms": 5.0, "num_kv_blocks": 256, "max_num_seqs": 1},
        admission={"queue": {"max_requests": 1}},
        tracing={"endpoint": receiver.endpoint, "export_delay_s": 0.1, "metrics_period_s": 0.3},
        logs={"format": "json", "requests": "all"},
    )
    with RunningServer(text, tmp_path_factory.mktemp("traced")) as server:
        yield server


@pytest.fixture(scope="module")
def tracer(receiver: OtlpReceiver) -> Iterator[Tracer]:
    """Yield the tracer of a client program."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{receiver.endpoint}/v1/traces")))
    yield provider.get_tracer("client")
    provider.shutdown()


_numbers = iter(range(0xABC000, 0xABCFFF))


def new_trace_id() -> str:
    return f"{next(_numbers):032x}"


def log_lines(server: RunningServer, **facts: str) -> list[dict[str, object]]:
    """Return the log's JSON objects that say this."""
    lines = [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]
    return [line for line in lines if all(line.get(name) == value for name, value in facts.items())]


def assert_told_in_order(engine: ReceivedSpan, own: ReceivedSpan) -> None:
    assert engine.parent_id == own.span_id
    assert engine.event_names == ENGINE_EVENTS
    times = [engine.start_ns, *(time_ns for _, time_ns in engine.events), engine.end_ns]
    assert times == sorted(times)
    assert own.start_ns <= engine.start_ns < engine.end_ns <= own.end_ns


@pytest.mark.parametrize("name", ["ensemble", "tensorrt_llm_bls"])
def test_a_request_is_one_trace_from_the_client_to_the_engine(
    name: str, traced: RunningServer, receiver: OtlpReceiver, tracer: Tracer
) -> None:
    request_id = f"of {name}"
    request = GenerateRequest(
        text_input=PROMPT, max_tokens=8, stream=True, return_finish_reason=True, tenant="acme", priority=1
    )
    with tracer.start_as_current_span("program") as program, TritonClient(traced.url, tracer=tracer) as client:
        chunks = list(client.generate(request, model=name, request_id=request_id))
    assert chunks[-1].finish_reason == "length"
    trace_id = f"{program.get_span_context().trace_id:032x}"
    receiver.wait(lambda: sum(span.trace_id == trace_id for span in receiver.spans) == 4)
    [outer] = [span for span in receiver.spans if span.trace_id == trace_id and span.name == "program"]
    [client_span] = [span for span in receiver.spans if span.parent_id == outer.span_id]
    [own] = [span for span in receiver.spans if span.parent_id == client_span.span_id]
    [engine] = [span for span in receiver.spans if span.parent_id == own.span_id]
    assert_told_in_order(engine, own)
    assert client_span.start_ns < own.start_ns < own.end_ns < client_span.end_ns
    assert own.name == client_span.name == f"text_completion {name}"
    assert own.event_names == ["tokenized", "first_token"]
    assert client_span.event_names == ["first_chunk"]
    expected = {
        "gen_ai.request.model": name,
        "gen_ai.usage.output_tokens": 8,
        "gen_ai.response.finish_reasons": ["length"],
        "trireme.release": "1",
        "trireme.tenant": "acme",
        "trireme.priority_class": "premium",
        "trireme.request_id": request_id,
    }
    assert own.attributes.items() >= expected.items()
    assert own.attributes["gen_ai.usage.input_tokens"] > 3
    assert engine.attributes.items() >= {"trireme.cached_tokens": 0, "trireme.preemptions": 0}.items()
    assert not own.is_error
    assert own.resource["service.name"] == "trireme"
    wait_until(lambda: len(log_lines(traced, trace_id=trace_id)) == 1, 5)
    [line] = log_lines(traced, trace_id=trace_id)
    assert line.items() >= {"request_id": request_id, "tenant": "acme", "release": "1", "model": name}.items()
    assert line.items() >= {"level": "info", "finish_reason": "length", "num_output_tokens": 8}.items()


def test_the_direct_path_goes_on_in_the_trace_that_a_parameter_names(
    traced: RunningServer, receiver: OtlpReceiver
) -> None:
    trace_id = new_trace_id()
    asked = engine_request([5, 6, 7], 4)
    parameters = {"traceparent": PARENT.format(trace=trace_id, flags="01")}
    list(stream(traced.url, "tensorrt_llm", asked, parameters=parameters))
    spans = receiver.of_trace(trace_id, names={"text_completion tensorrt_llm", "engine"})
    own = spans["text_completion tensorrt_llm"]
    assert own.parent_id == "b7ad6b7169203331"
    assert_told_in_order(spans["engine"], own)
    assert own.attributes["gen_ai.usage.input_tokens"] == 3


def test_a_caller_over_http_names_its_trace_in_the_body(traced: RunningServer, receiver: OtlpReceiver) -> None:
    trace_id = new_trace_id()
    body = {"text_input": PROMPT, "max_tokens": 4, "traceparent": PARENT.format(trace=trace_id, flags="01")}
    url = f"http://127.0.0.1:{traced.http_port}/v2/models/ensemble/generate"
    with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=20) as response:
        assert response.status == 200
    spans = receiver.of_trace(trace_id, names={"text_completion ensemble", "engine"})
    assert spans["text_completion ensemble"].parent_id == "b7ad6b7169203331"


GRAPH_SPANS = {"preprocessing", "text_completion tensorrt_llm", "engine"}


@pytest.mark.parametrize("is_named", [True, False])
def test_the_steps_of_the_graph_are_in_one_trace_also_where_the_caller_has_none(
    is_named: bool, traced: RunningServer, receiver: OtlpReceiver
) -> None:
    before = len(receiver.spans)
    request = GenerateRequest(text_input=PROMPT, max_tokens=4, stream=True)
    trace_id = new_trace_id()
    traceparent = PARENT.format(trace=trace_id, flags="01") if is_named else None
    with TritonClient(traced.url) as client:
        list(client.generate(request, model="ensemble_graph", traceparent=traceparent))
    receiver.wait(lambda: {span.name for span in receiver.spans[before:]} >= GRAPH_SPANS)
    spans = {span.name: span for span in receiver.spans[before:]}
    engine, own, prompt = spans["engine"], spans["text_completion tensorrt_llm"], spans["preprocessing"]
    assert {span.trace_id for span in spans.values()} == {trace_id if is_named else own.trace_id}
    assert prompt.parent_id == ("b7ad6b7169203331" if is_named else "")
    assert own.parent_id == ("b7ad6b7169203331" if is_named else prompt.span_id)
    assert_told_in_order(engine, own)
    assert prompt.start_ns < prompt.end_ns <= own.start_ns


def test_who_is_not_sampled_has_no_span_but_his_trace_in_the_log(traced: RunningServer, receiver: OtlpReceiver) -> None:
    unsampled, sampled = new_trace_id(), new_trace_id()
    request = GenerateRequest(text_input=PROMPT, max_tokens=2)
    with TritonClient(traced.url) as client:
        for trace_id, flags in ((unsampled, "00"), (sampled, "01")):
            list(client.generate(request, traceparent=PARENT.format(trace=trace_id, flags=flags)))
    receiver.of_trace(sampled, names={"text_completion ensemble", "engine"})
    assert not [span for span in receiver.spans if span.trace_id == unsampled]
    assert log_lines(traced, trace_id=unsampled)


def test_a_held_back_end_is_in_the_span(traced: RunningServer, receiver: OtlpReceiver) -> None:
    with TritonClient(traced.url) as client:
        [whole] = client.generate(GenerateRequest(text_input=PROMPT, max_tokens=8, exclude_input_in_output=True))
        trace_id = new_trace_id()
        held = GenerateRequest(
            text_input=PROMPT,
            max_tokens=8,
            exclude_input_in_output=True,
            stream=True,
            stop_words=(whole.text + "#",),
        )
        chunks = list(client.generate(held, traceparent=PARENT.format(trace=trace_id, flags="01")))
    assert [chunk.text for chunk in chunks if chunk.text] == [whole.text]
    spans = receiver.of_trace(trace_id, names={"text_completion ensemble", "engine"})
    assert_told_in_order(spans["engine"], spans["text_completion ensemble"])
    assert spans["engine"].attributes["gen_ai.usage.output_tokens"] == 8


async def _leave_after_the_first_chunk(url: str, traceparent: str) -> None:
    async with AsyncTritonClient(url) as client:
        request = GenerateRequest(text_input=PROMPT, max_tokens=1000, stream=True)
        async with contextlib.aclosing(client.generate(request, traceparent=traceparent)) as chunks:
            await anext(chunks)


def test_a_cancelled_request_says_so(traced: RunningServer, receiver: OtlpReceiver) -> None:
    trace_id = new_trace_id()
    asyncio.run(_leave_after_the_first_chunk(traced.url, PARENT.format(trace=trace_id, flags="01")))
    spans = receiver.of_trace(trace_id, names={"text_completion ensemble", "engine"})
    own, engine = spans["text_completion ensemble"], spans["engine"]
    assert engine.attributes["gen_ai.response.finish_reasons"] == ["cancelled"]
    assert engine.event_names == ENGINE_EVENTS
    assert own.is_error
    assert own.status == own.attributes["error.type"] == "CANCELLED"
    assert 1 <= own.attributes["gen_ai.usage.output_tokens"] < 1000


def test_refusals_are_errors_by_code_and_reason_and_quote_nobody(traced: RunningServer, receiver: OtlpReceiver) -> None:
    wrong, full = new_trace_id(), new_trace_id()
    bad = GenerateRequest(text_input=PROMPT, max_tokens=4, temperature=-2.0)
    with TritonClient(traced.url) as client, pytest.raises(RequestError, match="temperature"):
        list(client.generate(bad, traceparent=PARENT.format(trace=wrong, flags="01")))
    own = receiver.of_trace(wrong, names={"text_completion ensemble"})["text_completion ensemble"]
    assert own.status == "INVALID_ARG field=temperature"

    def ask(_: int) -> ServingError | None:
        with TritonClient(traced.url) as client:
            request = GenerateRequest(text_input=PROMPT, max_tokens=100, tenant="acme")
            try:
                list(client.generate(request, traceparent=PARENT.format(trace=full, flags="01")))
            except ServingError as exc:
                return exc
        return None

    with ThreadPoolExecutor(4) as threads:
        errors = [error for error in threads.map(ask, range(4)) if error is not None]
    assert errors
    assert all(isinstance(error, Unavailable) for error in errors)
    receiver.wait(lambda: sum(span.trace_id == full for span in receiver.spans) == 8)
    refused = [span for span in receiver.spans if span.trace_id == full and span.is_error]
    assert {span.status for span in refused} == {"UNAVAILABLE reason=queue_full"}
    assert {span.name for span in refused} == {"text_completion ensemble", "engine"}
    waited = [span for span in receiver.spans if span.trace_id == full and span.name == "engine" and not span.is_error]
    queue_ns = [dict(span.events)["admitted"] - dict(span.events)["queued"] for span in waited]
    assert max(queue_ns) > 100e6, "100 steps of 5 ms before it"
    [line, *_] = log_lines(traced, trace_id=full, message="request failed: UNAVAILABLE reason=queue_full")
    assert line.items() >= {"tenant": "acme", "level": "warning", "model": "ensemble", "release": "1"}.items()


def test_the_time_to_the_first_token_has_exemplars_that_lead_to_spans(
    traced: RunningServer, receiver: OtlpReceiver
) -> None:
    trace_id = new_trace_id()
    with TritonClient(traced.url) as client:
        request = GenerateRequest(text_input=PROMPT, max_tokens=2)
        list(client.generate(request, traceparent=PARENT.format(trace=trace_id, flags="01")))
    own = receiver.of_trace(trace_id, names={"text_completion ensemble", "engine"})["text_completion ensemble"]
    receiver.wait(lambda: any(exemplar.trace_id == trace_id for exemplar in receiver.exemplars))
    exemplar = next(one for one in receiver.exemplars if one.trace_id == trace_id)
    assert exemplar.span_id == own.span_id
    first_token_ns = dict(own.events)["first_token"]
    assert exemplar.value == pytest.approx((first_token_ns - own.start_ns) / 1e9, abs=1e-6)
    assert receiver.counts["gen_ai.server.time_to_first_token"] > 0


def test_a_dead_engine_ends_the_span_and_the_last_spans_leave_with_the_server(
    start_server: Callable[..., RunningServer], receiver: OtlpReceiver
) -> None:
    server = start_server(
        engine={"provider": "simulated", "step_ms": 20.0, "num_kv_blocks": 256},
        tracing={"endpoint": receiver.endpoint, "export_delay_s": 60.0, "is_triton_traced": True},
        logs={"format": "json", "requests": "failed"},
    )
    died, others = new_trace_id(), [new_trace_id() for _ in range(5)]
    with TritonClient(server.url) as client:
        request = GenerateRequest(text_input=PROMPT, max_tokens=500, stream=True)
        chunks = client.generate(request, traceparent=PARENT.format(trace=died, flags="01"))
        next(chunks)
        server.engine_process().kill()
        with pytest.raises(Unavailable, match="died"):
            list(chunks)
        wait_until(lambda: bool(log_lines(server, trace_id=died)), 5)
        [line] = log_lines(server, trace_id=died)
        assert line["message"] == "request failed: UNAVAILABLE reason=engine_died"
        wait_until(lambda: len(log_lines(server, model="ensemble", message="the engine is back, pid None")) == 1, 20)
        for trace_id in others:
            request = GenerateRequest(text_input=PROMPT, max_tokens=2)
            list(client.generate(request, traceparent=PARENT.format(trace=trace_id, flags="01")))
    assert not [span for span in receiver.spans if span.trace_id in (died, *others) and span.name == "engine"]
    assert server.stop() == 0
    spans = receiver.of_trace(died, names={"text_completion ensemble", "engine"})
    for name in ("text_completion ensemble", "engine"):
        assert spans[name].status == "UNAVAILABLE reason=engine_died"
    assert spans["engine"].event_names == ["queued", "first_token", "last_token", "done"]
    assert spans["engine"].attributes["gen_ai.usage.output_tokens"] >= 1
    assert all(piece not in server.log() for piece in PIECES)
    found = [receiver.of_trace(trace_id, names={"text_completion ensemble", "engine"}) for trace_id in others]
    assert any(_is_below_tritons(spans) for spans in found), "a Triton misses the trace of some streams, not of all"


def _is_below_tritons(spans: dict[str, ReceivedSpan]) -> bool:
    """Return whether Triton's own spans are there, between the client's and ours."""
    if "InferRequest" not in spans:
        return False
    request, triton, own = spans["InferRequest"], spans["ensemble"], spans["text_completion ensemble"]
    return (request.parent_id, triton.parent_id, own.parent_id) == (
        "b7ad6b7169203331",
        request.span_id,
        triton.span_id,
    )


def test_without_a_receiver_requests_are_answered_and_the_server_stops_in_time(
    start_server: Callable[..., RunningServer],
) -> None:
    tracing = {"endpoint": "http://127.0.0.1:9", "export_delay_s": 0.05, "is_triton_traced": True}
    server = start_server(tracing=tracing, options=("--log-format", "json"))
    with TritonClient(server.url) as client:
        for _ in range(20):
            [answer] = client.generate(GenerateRequest(text_input=PROMPT, max_tokens=2), timeout_s=5)
            assert answer.text
    assert server.stop(15) == 0
    assert any("/v1/traces" in str(line["message"]) for line in log_lines(server, level="warning")), "it is told of"


def test_no_line_of_the_log_quotes_a_prompt_or_an_answer(traced: RunningServer) -> None:
    with TritonClient(traced.url) as client:
        [answer] = client.generate(GenerateRequest(text_input=PROMPT, max_tokens=30, exclude_input_in_output=True))
        words = tuple(word for word in answer.text.split() if len(word) > 6)
        for wrong in ({"stop_words": ("zebras" * 200,)}, {"top_p": 7.0}, {"tenant": "zebras" * 100}):
            request = GenerateRequest(text_input=PROMPT, max_tokens=4, **wrong)
            with pytest.raises(ServingError):
                list(client.generate(request))
    with pytest.raises(StreamFailed):
        list(stream(traced.url, "ensemble", ASK | {"text_input": PROMPT.encode() + b"\xff"}))
    wait_until(lambda: len(log_lines(traced, message="request failed: INVALID_ARG field=text_input")) == 1, 5)
    log = traced.log()
    assert not [piece for piece in (*PIECES, *words) if piece in log]
    python = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in python)
    assert {line.get("model") for line in python} >= {"ensemble", "tensorrt_llm", None}
