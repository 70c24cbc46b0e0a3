# SPDX-License-Identifier: Apache-2.0
"""A small real gRPC server that speaks Triton's wire (KServe v2) and plays a script to every request."""

import itertools
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any, Self

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

WAIT_S = 10.0  # a test that waits this long has failed

HANG = object()  # send nothing until the client is gone
DIE = object()  # break the connection

# A response, an error text, a pause in seconds, an event to wait for, HANG, DIE, a gRPC status to end the call with, or
# what makes such steps of the request. The stream ends after the last step.
Step = Any


def response(
    text: str | None = None,
    *,
    num_output_tokens: int | None = None,
    num_input_tokens: int | None = None,
    finish_reason: str | None = None,
    release: int | None = None,
    token_ids: Sequence[int] | None = None,
    log_probs: Sequence[float] | None = None,
    final: bool = False,
) -> Step:
    """Return one response, as Triton encodes it; what is None is absent from it."""
    reply = service_pb2.ModelInferResponse()
    reply.parameters["triton_final_response"].bool_param = final
    for name, words, shape in (("text_output", text, [1]), ("finish_reason", finish_reason, [1, 1])):
        if words is not None:
            reply.outputs.add(name=name, datatype="BYTES", shape=shape)
            reply.raw_output_contents.append(struct.pack("<I", len(words.encode())) + words.encode())
    counts = {"num_input_tokens": num_input_tokens, "num_output_tokens": num_output_tokens, "release": release}
    for name, count in counts.items():
        if count is not None:
            reply.outputs.add(name=name, datatype="INT32", shape=[1, 1])
            reply.raw_output_contents.append(struct.pack("<i", count))
    if token_ids is not None:
        reply.outputs.add(name="token_ids", datatype="INT32", shape=[1, len(token_ids)])
        reply.raw_output_contents.append(struct.pack(f"<{len(token_ids)}i", *token_ids))
    if log_probs is not None:
        reply.outputs.add(name="output_log_probs", datatype="FP32", shape=[1, 1, len(log_probs)])
        reply.raw_output_contents.append(struct.pack(f"<{len(log_probs)}f", *log_probs))
    return service_pb2.ModelStreamInferResponse(infer_response=reply)


def story() -> list[Step]:
    """Return three responses of one generation."""
    return [
        response("Once", num_output_tokens=1, num_input_tokens=4),
        response(" upon", num_output_tokens=2),
        response(" ünd", num_output_tokens=1, finish_reason="length", final=True),
    ]


class KServeServer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """A server on a free port that runs inside a `with`.

    Attributes:
        requests: that it had.
        is_ready: what it says of itself.
        model: that it says is ready.
        whole: makes the answer of a request that is answered whole, or a text that it fails with.
    """

    def __init__(self, *script: Step) -> None:
        self.script = script
        self.requests: list[Any] = []
        self.stream_metadata: list[dict[str, str]] = []  # of each stream
        self.is_ready = True
        self.model = "ensemble"
        self.whole: Callable[[Any], Any] = lambda _request: "no answer is scripted"
        self.was_cancelled = threading.Event()  # a request was left before its script ended
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=32))
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        self.url = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        # A grace, as gRPC clients log a connection that ends in the middle of a call, maybe into the next test.
        self._server.stop(grace=1).wait()

    def ServerReady(self, _request: Any, _context: grpc.ServicerContext) -> Any:  # noqa: N802  KServe's name
        """Say whether the server is ready."""
        return service_pb2.ServerReadyResponse(ready=self.is_ready)

    def ModelReady(self, request: Any, _context: grpc.ServicerContext) -> Any:  # noqa: N802  KServe's name
        """Say that one model is ready, and no other."""
        return service_pb2.ModelReadyResponse(ready=request.name == self.model)

    def ModelInfer(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802  KServe's name
        """Answer whole."""
        self.requests.append(request)
        answer = self.whole(request)
        if isinstance(answer, str):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, answer)
        return answer

    def ModelStreamInfer(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        """Play the script."""
        is_over, has_played = threading.Event(), threading.Event()

        def note_the_end() -> None:  # gRPC does not even resume this generator when the client left
            is_over.set()
            if not has_played.is_set():
                self.was_cancelled.set()

        self.stream_metadata.append(dict(context.invocation_metadata()))
        context.add_callback(note_the_end)
        for request in itertools.islice(requests, 1):  # one request a stream, as the client does
            self.requests.append(request)
            for step in self.script:
                for one in step(request) if callable(step) else [step]:
                    yield from self._play(one, is_over, context)
        has_played.set()

    def _play(self, step: Step, is_over: threading.Event, context: grpc.ServicerContext) -> Iterator[Any]:
        if isinstance(step, str):
            yield service_pb2.ModelStreamInferResponse(error_message=step)
        elif isinstance(step, float):
            is_over.wait(step)
        elif isinstance(step, threading.Event):
            assert step.wait(WAIT_S)
        elif step is HANG:
            is_over.wait(WAIT_S)
        elif step is DIE:
            self._server.stop(grace=0)
            is_over.wait(WAIT_S)
        elif isinstance(step, grpc.StatusCode):
            context.abort(step, "as scripted")
        else:
            yield step
