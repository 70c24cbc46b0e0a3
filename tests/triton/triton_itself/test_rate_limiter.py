# SPDX-License-Identifier: Apache-2.0
"""Triton's own rate limiter on models of a few lines, as docs/rate_limiting.md describes it."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import numpy as np
import pytest
from plain_triton import PlainTriton, write_model
from tritonclient.grpc import service_pb2, service_pb2_grpc

PRIORITIES = [(1, 2), (1, 4), (0, 2)]
TENSORS = """
max_batch_size: 0
input [{ name: "duration_ms" data_type: TYPE_INT32 dims: [1] }]
output [{ name: "span_ns" data_type: TYPE_INT64 dims: [2] }]
"""
# Both say from when to when they worked. The second returns from execute() at once and works on a thread.
WORKS_IN_EXECUTE = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.work(request) for request in requests]

    def work(self, request):
        begin_ns = time.monotonic_ns()
        time.sleep(pb_utils.get_input_tensor_by_name(request, "duration_ms").as_numpy()[0] / 1000)
        span_ns = np.array([begin_ns, time.monotonic_ns()], np.int64)
        return pb_utils.InferenceResponse([pb_utils.Tensor("span_ns", span_ns)])
"""
WORKS_AFTERWARDS = WORKS_IN_EXECUTE.replace("import time\n", "import threading\nimport time\n").replace(
    "        return [self.work(request) for request in requests]\n",
    """        for request in requests:
            threading.Thread(target=self.reply, args=(request, request.get_response_sender())).start()

    def reply(self, request, sender):
        sender.send(self.work(request), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
""",
)


def write_limited(repository: Path, name: str, limits: str, *, is_decoupled: bool = False, more: str = "") -> None:
    """Write a model whose instances are limited so."""
    group = f"instance_group [{{ count: 1 kind: KIND_CPU rate_limiter {{ {limits} }} }}]\n"
    policy = "model_transaction_policy { decoupled: true }\n" if is_decoupled else ""
    code = WORKS_AFTERWARDS if is_decoupled else WORKS_IN_EXECUTE
    write_model(repository, name, config=TENSORS + group + policy + more, code=code)


def resource(name: str, count: int = 1, more: str = "") -> str:
    return f'resources [{{ name: "{name}" count: {count} {more} }}]'


@dataclass(frozen=True)
class Span:
    begin_ns: int
    end_ns: int

    def overlaps(self, other: "Span") -> bool:
        return self.begin_ns < other.end_ns and other.begin_ns < self.end_ns


def request_of(model: str, duration_ms: int) -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(model_name=model)
    message.inputs.add(name="duration_ms", datatype="INT32", shape=[1])
    message.raw_input_contents.append(np.array([duration_ms], np.int32).tobytes())
    return message


def span_of(answer: service_pb2.ModelStreamInferResponse) -> Span:
    assert not answer.error_message, answer.error_message
    span = np.frombuffer(answer.infer_response.raw_output_contents[0], np.int64)
    return Span(int(span[0]), int(span[1]))


async def ask(stub: service_pb2_grpc.GRPCInferenceServiceStub, model: str, duration_ms: int) -> Span:
    call = stub.ModelStreamInfer()
    await call.write(request_of(model, duration_ms))
    answer = await call.read()
    await call.done_writing()
    return span_of(answer)


@contextlib.asynccontextmanager
async def calling(server: PlainTriton):  # type: ignore[no-untyped-def]
    async with grpc.aio.insecure_channel(server.url) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


async def ask_together(server: PlainTriton, models: list[str], duration_ms: int) -> list[Span]:
    async with calling(server) as stub:
        return list(await asyncio.gather(*(ask(stub, model, duration_ms) for model in models)))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainTriton]:
    """Yield pairs of models that want one unit each: of `slot`, which has 1, and of `pair`, which has 2."""
    folder = tmp_path_factory.mktemp("limited")
    repository = folder / "models"
    for name in ("a", "b"):
        write_limited(repository, f"decoupled_{name}", resource("slot"), is_decoupled=True)
        write_limited(repository, f"blocking_{name}", resource("slot"))
        write_limited(repository, f"paired_{name}", resource("pair"))
    for one, other in PRIORITIES:
        for name, priority in (("one", one), ("other", other)):
            limits = f"{resource(f'for_{one}_{other}')} priority: {priority}"
            write_limited(repository, f"{name}_{one}_{other}", limits)
    for name in ("early", "late"):
        write_limited(repository, name, resource("history"))
    counts = {"slot": 1, "pair": 2, "history": 1} | {f"for_{one}_{other}": 1 for one, other in PRIORITIES}
    options = ("--rate-limit=execution_count", *(f"--rate-limit-resource={n}:{count}" for n, count in counts.items()))
    with PlainTriton(repository, folder, options=options) as started:
        yield started


def test_a_decoupled_model_lets_go_of_its_resources_when_execute_returns(server: PlainTriton) -> None:
    models = ["decoupled_a", "decoupled_b", "decoupled_a"]
    spans = asyncio.run(ask_together(server, models, 800))
    # One unit for all, and three generate at once: two of one model, too.
    assert all(one.overlaps(other) for one in spans for other in spans)


def test_a_model_that_works_in_execute_holds_its_resources_meanwhile(server: PlainTriton) -> None:
    spans = asyncio.run(ask_together(server, ["blocking_a", "blocking_b"] * 3, 100))
    assert not any(one.overlaps(other) for i, one in enumerate(spans) for other in spans[:i])


def test_as_many_work_at_once_as_there_are_units(server: PlainTriton) -> None:
    one, other = asyncio.run(ask_together(server, ["paired_a", "paired_b"], 500))
    assert one.overlaps(other)


async def order_of_executions(server: PlainTriton, models: list[str], *, each: int) -> list[str]:
    """Return the models in the order of their executions, which all wait behind a long one of the first model.

    The requests are sent at once, so a client that is slow to ask again cannot leave a model without requests.
    """
    names = [models[0]] + models * each
    async with calling(server) as stub:
        call = stub.ModelStreamInfer()
        for number, model in enumerate(names):
            await call.write(request_of(model, 500 if number == 0 else 4))
        await call.done_writing()
        spans = [span_of(answer) async for answer in call]
    assert len(spans) == len(names)
    # Triton answers a stream's requests of models that are not decoupled in the order in which they came.
    in_order = sorted(zip(spans, names, strict=True), key=lambda pair: pair[0].begin_ns)
    return [name for _, name in in_order[1:]]


async def executions_under_saturation(server: PlainTriton, models: list[str], *, each: int) -> Counter[str]:
    """Return the executions of each model until the first of them has no request left."""
    executions: Counter[str] = Counter()
    for model in await order_of_executions(server, models, each=each):
        executions[model] += 1
        if executions[model] == each:
            break
    return executions


@pytest.mark.parametrize(("one", "other"), PRIORITIES)
def test_executions_are_in_inverse_proportion_to_priorities(server: PlainTriton, one: int, other: int) -> None:
    models = [f"one_{one}_{other}", f"other_{one}_{other}"]
    executions = asyncio.run(executions_under_saturation(server, models, each=200))
    # Whose executions times priority are fewer is next; a priority of 0 counts as 1.
    assert executions[models[0]] / executions[models[1]] == pytest.approx(other / max(1, one), rel=0.1)


def test_what_a_model_did_not_execute_in_the_past_is_owed_to_it(server: PlainTriton) -> None:
    async def run_one_and_then_both() -> Counter[str]:
        await order_of_executions(server, ["early"], each=200)
        return await executions_under_saturation(server, ["early", "late"], each=100)

    both = asyncio.run(run_one_and_then_both())
    # `late` has executed nothing while it was idle: until it has caught up the other one stands still.
    assert both["late"] > 10 * both["early"]


def test_without_counts_there_is_as_much_as_the_greediest_instance_wants(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_limited(tmp_path / "models", name, resource("alike"))
    write_limited(tmp_path / "models", "one", resource("unlike", 1))
    write_limited(tmp_path / "models", "two", resource("unlike", 2))
    write_limited(tmp_path / "models", "another_one", resource("unlike", 1))
    with PlainTriton(tmp_path / "models", tmp_path, options=("--rate-limit=execution_count",)) as server:
        one, other = asyncio.run(ask_together(server, ["a", "b"], 200))
        assert not one.overlaps(other)
        one, other = asyncio.run(ask_together(server, ["one", "another_one"], 300))
        assert one.overlaps(other)
        one, other = asyncio.run(ask_together(server, ["one", "two"], 200))
        assert not one.overlaps(other)


def test_a_model_whose_resource_there_is_too_little_of_does_not_load_and_says_so(tmp_path: Path) -> None:
    write_limited(tmp_path / "models", "not_named", resource("nowhere", 2))
    write_limited(tmp_path / "models", "too_few", resource("few", 2))
    write_limited(tmp_path / "models", "other_case", resource("case", 2))  # its help says that case does not matter
    write_limited(tmp_path / "models", "other_device", resource("elsewhere", 2))  # the CPU is device 0
    write_limited(tmp_path / "models", "server_wide", resource("everywhere", 2, "global: true"))
    both = 'resources [{ name: "both" count: 1 }, { name: "both" count: 1 global: true }]'
    write_limited(tmp_path / "models", "of_both_kinds", both)
    counts = ("few:1", "CASE:2", "elsewhere:2:1", "everywhere:1", "both:2")
    options = ("--rate-limit=execution_count", *(f"--rate-limit-resource={count}" for count in counts))
    with PlainTriton(tmp_path / "models", tmp_path, options=options, is_failing=True) as server:
        log = server.log()
    said = 'Resource count for "{}" is limited to {} which will prevent scheduling'
    for name, count in (("nowhere", 0), ("few", 1), ("case", 0), ("elsewhere", 0), ("everywhere", 1)):
        assert said.format(name, count) in log, log
    assert 'Resource "both" is present as both global and device-specific resource' in log
