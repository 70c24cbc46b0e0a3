# SPDX-License-Identifier: Apache-2.0
"""The frontend of gRPC between real clients and a real gRPC server that stands for Triton's."""

import asyncio
import contextlib
import struct
import tempfile
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from relay_site import MAX_BYTES, Site, at_site, request, served, stream, until
from tritonclient.grpc import service_pb2

from serving.frontend.grpc import client_streams, grpc_relay
from serving.frontend.grpc import http2_frames as h2
from serving.frontend.grpc.grpc_relay import ClientConnection
from serving.frontend.grpc.header_blocks import write
from trireme.base.errors import Unavailable

pytestmark = pytest.mark.slow


def only_connection(site: Site) -> ClientConnection:
    [connection] = site.state.connections
    assert isinstance(connection, ClientConnection)
    return connection


async def refused(call: Any) -> grpc.aio.AioRpcError:
    try:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as exc:
        return exc
    pytest.fail("it was not refused")


@served
async def test_messages_pass_as_they_are(site: Site) -> None:
    contents = bytes(range(256)) * 3_900  # just below the limit, in many frames
    answer = await site.stub.ModelInfer(request(contents))
    assert answer.raw_output_contents == [contents]
    assert (await site.stub.ServerLive(service_pb2.ServerLiveRequest())).live
    found = [each async for each in site.stub.ModelStreamInfer(stream(request(b"abcd", times=500), request(b"efgh")))]
    assert [each.infer_response.raw_output_contents[0] for each in found] == [b"abcd"] * 500 + [b"efgh"]


@served
async def test_many_calls_share_a_connection(site: Site) -> None:
    async def one(index: int) -> None:
        contents = struct.pack("<I", index) * 10_000
        found = [each async for each in site.stub.ModelStreamInfer(stream(request(contents, times=7)))]
        assert [each.infer_response.raw_output_contents[0] for each in found] == [contents] * 7

    await asyncio.gather(*(one(index) for index in range(100)))
    assert len(site.state.connections) == 1
    assert not only_connection(site)._streams


@served
async def test_answers_are_larger_than_windows(site: Site) -> None:
    contents = b"x" * 900_000
    found = [each async for each in site.stub.ModelStreamInfer(stream(request(contents, times=50)))]
    assert [len(each.infer_response.raw_output_contents[0]) for each in found] == [900_000] * 50


@served
async def test_the_deadly_header_and_a_clients_own_stream_name_do_not_reach_triton(site: Site) -> None:
    metadata = (("triton_grpc_error", "true"), ("trireme-stream", "mine"), ("traceparent", "kept"))
    await site.stub.ModelInfer(request(), metadata=metadata)
    [seen] = site.triton.metadata
    assert "triton_grpc_error" not in seen
    assert seen["traceparent"] == "kept"
    assert seen["trireme-stream"] not in {"mine", ""}


@served
async def test_a_message_that_is_too_long_is_refused_and_others_go_on(site: Site) -> None:
    waiting = site.stub.ModelStreamInfer(stream(request(name="wait")))
    assert (await waiting.read()).infer_response.id == "wait"
    for _ in range(50):  # what was dropped is given back: else the connection's window would be used up
        error = await refused(site.stub.ModelInfer(request(b"x" * 1_200_000)))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "at most 1000000 are taken (triton.max_request_bytes)" in error.details()
    answer = await site.stub.ModelInfer(request(b"y" * 900_000))
    assert len(answer.raw_output_contents[0]) == 900_000
    assert not waiting.done()
    assert site.triton.num_cancelled == 0
    waiting.cancel()


@served
async def test_a_compressed_message_is_measured_unpacked(site: Site) -> None:
    gzip = grpc.Compression.Gzip
    error = await refused(site.stub.ModelInfer(request(b"x" * 1_200_000), compression=gzip))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    answer = await site.stub.ModelInfer(request(b"x" * 900_000), compression=gzip)
    assert len(answer.raw_output_contents[0]) == 900_000


@served
async def test_a_tensor_that_would_end_a_model_is_refused_by_name_wherever_it_comes_in_a_stream(site: Site) -> None:
    deadly = request(shape=[1, 0, 2**62])
    error = await refused(site.stub.ModelInfer(deadly))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith('[INVALID_ARG field=IDS value="[1, 0, 4611686018427387904]"]')
    call = site.stub.ModelStreamInfer(stream(request(b"good"), deadly))
    error = await refused(call)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await site.stub.ModelInfer(request(b"good"))).raw_output_contents == [b"good"]


@served
async def test_a_tensor_of_countless_texts_is_refused_by_name(site: Site) -> None:
    texts = service_pb2.ModelInferRequest(model_name="ensemble")
    texts.inputs.add(name="text_input", datatype="BYTES", shape=[1, 200_000])
    texts.raw_input_contents.append(b"\0" * 800_000)
    error = await refused(site.stub.ModelInfer(texts))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "the shape of text_input of texts is [1, 200000]" in error.details()


@served
async def test_a_message_of_countless_fields_is_refused(site: Site) -> None:
    bomb = service_pb2.ModelInferRequest(model_name="ensemble")
    for _ in range(30_000):
        bomb.inputs.add()
    error = await refused(site.stub.ModelInfer(bomb))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "more than 20000 fields" in error.details()


@served
async def test_who_leaves_is_named_and_who_ends_well_is_not(site: Site) -> None:
    async for _ in site.stub.ModelStreamInfer(stream(request(times=3))):
        pass
    assert site.left.names == []
    call = site.stub.ModelStreamInfer(stream(request(name="wait")))
    await call.read()
    call.cancel()
    await until(lambda: site.left.names == [site.triton.metadata[-1]["trireme-stream"]])
    other = site.stub.ModelStreamInfer(stream(request(name="wait")))
    await other.read()
    only_connection(site)._client.abort()
    await until(lambda: site.left.names[1:] == [site.triton.metadata[-1]["trireme-stream"]])
    await asyncio.sleep(0.1)
    assert site.triton.num_cancelled == 0  # the models may answer: Triton sees no cancel
    for connection in list(site.state.connections):
        connection.tick(asyncio.get_running_loop().time() + 21)
    await until(lambda: site.triton.num_cancelled == 2)
    await until(lambda: not site.state.connections)
    other.cancel()


@served
async def test_a_model_that_is_not_told_is_cancelled_when_it_has_not_ended_half_a_second_later(site: Site) -> None:
    asked = request(name="wait")
    asked.model_name = "mine"
    call = site.stub.ModelStreamInfer(stream(asked))
    await call.read()
    call.cancel()
    await until(lambda: not only_connection(site)._streams)
    only_connection(site).tick(asyncio.get_running_loop().time() + 0.4)
    await asyncio.sleep(0.1)
    assert site.triton.num_cancelled == 0
    only_connection(site).tick(asyncio.get_running_loop().time() + 0.6)
    await until(lambda: site.triton.num_cancelled == 1)


@served
async def test_what_ends_by_itself_after_its_client_has_left_is_not_reset(site: Site) -> None:
    async def soon() -> None:
        call = site.stub.ModelStreamInfer(stream(request(b"x" * 500_000, times=20)))
        await call.read()
        call.cancel()

    for _ in range(30):  # windows of the connection and of streams are given back: else it would stand still
        await soon()
    connection = only_connection(site)
    await until(lambda: not connection._streams.is_winding_up)
    assert site.triton.num_cancelled == 0
    assert (await site.stub.ModelInfer(request(b"good"))).raw_output_contents == [b"good"]
    assert len(site.left.names) == 30


@pytest.mark.parametrize("is_lost", [False, True])
def test_what_runs_into_the_window_of_a_client_that_has_left_ends_by_itself(is_lost: bool) -> None:
    async def work(site: Site) -> None:
        reader, writer = await site.raw()
        body = request(b"x" * 50_000, times=20).SerializeToString()
        writer.write(GREETING + h2.make_frame(h2.HEADERS, h2.END_HEADERS, 1, headers(call=b"ModelStreamInfer")))
        message = struct.pack(">?I", False, len(body)) + body
        for start in range(0, len(message), 16_384):
            writer.write(h2.make_frame(h2.DATA, 0, 1, message[start : start + 16_384]))
        num_bytes = 0
        while num_bytes < 65_535:  # the window that a client has which says nothing of it
            num_bytes += len(await reader.read(65_536))
        connection = only_connection(site)
        if is_lost:
            writer.close()
        else:
            writer.write(h2.give_back(65_535) + h2.reset(1, h2.CANCEL))
        await until(lambda: len(site.left.names) == 1 and not connection._streams.is_winding_up)
        assert site.triton.num_cancelled == 0

    asyncio.run(at_site(work))


@served
async def test_who_leaves_in_the_middle_of_a_message_is_reset_and_told_of_later(site: Site) -> None:
    _, writer = await site.raw()
    writer.write(GREETING + h2.make_frame(h2.HEADERS, h2.END_HEADERS, 1, headers()))
    writer.write(h2.make_frame(h2.DATA, 0, 1, struct.pack(">?I", False, 100) + b"x" * 20))
    await until(lambda: len(site.state.connections) == 1 and bool(only_connection(site)._streams.get(1)))
    writer.write(h2.reset(1, h2.CANCEL))
    await until(lambda: not only_connection(site)._streams.get(1))
    assert site.left.names == []
    await until(lambda: len(site.left.names) == 1)


@served
async def test_nothing_is_taken_during_a_drain_and_what_runs_goes_on(site: Site) -> None:
    call = site.stub.ModelStreamInfer(stream(request(name="wait")))
    await call.read()
    site.state.refusal = Unavailable("the server is shutting down", reason="draining")
    error = await refused(site.stub.ModelInfer(request()))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details() == "[UNAVAILABLE reason=draining] the server is shutting down"
    assert (await site.stub.ServerLive(service_pb2.ServerLiveRequest())).live
    assert not call.done()
    call.cancel()


@served
async def test_without_triton_a_call_is_unavailable(site: Site) -> None:
    site.state.port = None
    assert (await refused(site.stub.ModelInfer(request()))).code() is grpc.StatusCode.UNAVAILABLE


@served
async def test_too_many_bytes_on_their_way(site: Site) -> None:
    site.budget.take(8 * MAX_BYTES)
    error = await refused(site.stub.ModelInfer(request(b"x" * 1_100_000)))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # its own size comes first
    site.state.max_request_bytes = 2 * MAX_BYTES
    error = await refused(site.stub.ModelInfer(request(b"x" * 1_100_000)))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "reason=too_many_bytes" in error.details()
    assert (await site.stub.ModelInfer(request(b"x" * 100_000))).raw_output_contents
    site.budget.give(8 * MAX_BYTES)


def headers(*more: tuple[bytes, bytes], call: bytes = b"ModelInfer") -> bytes:
    return write(
        [
            *[(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"), (b"te", b"trailers")],
            *[(b":path", b"/inference.GRPCInferenceService/" + call), (b"content-type", b"application/grpc")],
            *more,
        ]
    )


GREETING = h2.PREFACE + h2.make_frame(h2.SETTINGS, 0, 0)
WRONG = {
    "not http/2": b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    "a tls hello": bytes.fromhex("160301020001000001fc0303"),
    "another path behind the first": GREETING
    + h2.make_frame(h2.HEADERS, h2.END_HEADERS, 1, headers((b":path", b"/inference.GRPCInferenceService/ServerLive"))),
    "an encoding behind the first": GREETING
    + h2.make_frame(h2.HEADERS, h2.END_HEADERS, 1, headers(*[(b"grpc-encoding", name) for name in (b"gzip", b"x")])),
    "a frame too long": GREETING + struct.pack(">BHBBI", 0xFF, 0xFFFF, h2.DATA, 0, 1),
    "data of no stream": GREETING + h2.make_frame(h2.DATA, 0, 7, b"abc"),
    "headers that cannot be read": GREETING + h2.make_frame(h2.HEADERS, h2.END_HEADERS, 1, b"\xff" * 20),
    "headers without an end": GREETING
    + h2.make_frame(h2.HEADERS, 0, 1, b"\x00" * 16_000)
    + h2.make_frame(h2.CONTINUATION, 0, 1, b"\x00" * 16_000),
    "headers larger than read": GREETING
    + h2.make_frame(h2.HEADERS, h2.END_HEADERS, 1, b"\x40\x01a\x64" + b"b" * 100 + b"\xbe" * 15_000),
    "another frame within headers": GREETING
    + h2.make_frame(h2.HEADERS, 0, 1, headers())
    + h2.make_frame(h2.PING, 0, 0, b"8" * 8),
    "headers that go on from nowhere": GREETING + h2.make_frame(h2.CONTINUATION, 0, 1, b""),
    "padding longer than its frame": GREETING
    + h2.make_frame(h2.HEADERS, h2.END_HEADERS, 1, headers())
    + h2.make_frame(h2.DATA, h2.PADDED, 1, b"\xff"),
    "a push": GREETING + h2.make_frame(h2.PUSH_PROMISE, h2.END_HEADERS, 1, b"\x00" * 4),
    "a flood of pings": GREETING + h2.make_frame(h2.PING, 0, 0, b"8" * 8) * 2_500,
    "a flood of empty data": GREETING
    + h2.make_frame(h2.HEADERS, h2.END_HEADERS, 1, headers())
    + h2.make_frame(h2.DATA, 0, 1) * 2_500,
    "a flood of resets": GREETING
    + b"".join(
        h2.make_frame(h2.HEADERS, h2.END_HEADERS, 2 * index + 1, headers()) + h2.reset(2 * index + 1, h2.CANCEL)
        for index in range(2_500)
    ),
}


@pytest.mark.parametrize("sent", WRONG.values(), ids=WRONG)
def test_what_is_not_grpc_ends_its_connection_and_no_other(sent: bytes) -> None:
    async def work(site: Site) -> None:
        call = site.stub.ModelStreamInfer(stream(request(name="wait")))
        await call.read()
        reader, writer = await site.raw()
        writer.write(sent)
        with contextlib.suppress(ConnectionError):
            while await reader.read(65_536):
                pass
        assert not call.done()
        assert (await answered(site)).raw_output_contents == [b"good"]
        call.cancel()

    asyncio.run(at_site(work))


async def answered(site: Site) -> Any:
    """Call until one is not cancelled: after thousands of resets grpc.aio's server, a stand-in, cancels a few more."""
    for _ in range(4):
        try:
            return await site.stub.ModelInfer(request(b"good"))
        except grpc.aio.AioRpcError as exc:
            if exc.code() is not grpc.StatusCode.CANCELLED:
                raise
    return await site.stub.ModelInfer(request(b"good"))


SLOW = {
    "nothing": b"",
    "half a preface": h2.PREFACE[:10],
    "half a frame": GREETING + h2.make_frame(h2.PING, 0, 0, b"8" * 8)[:12],
    "half the headers": GREETING + h2.make_frame(h2.HEADERS, 0, 1, headers()),
    "half a message": GREETING
    + h2.make_frame(h2.HEADERS, h2.END_HEADERS, 1, headers())
    + h2.make_frame(h2.DATA, 0, 1, struct.pack(">?I", False, 100) + b"x" * 20),
    "half a prefix": GREETING
    + h2.make_frame(h2.HEADERS, h2.END_HEADERS, 1, headers())
    + h2.make_frame(h2.DATA, 0, 1, b"\x00\x00"),
}


@pytest.mark.parametrize("sent", SLOW.values(), ids=SLOW)
def test_who_is_slow_is_given_up(sent: bytes) -> None:
    async def work(site: Site) -> None:
        reader, writer = await site.raw()
        writer.write(sent)
        await until(lambda: bool(site.state.connections))
        connection = only_connection(site)
        await asyncio.sleep(0.05)
        connection.tick(asyncio.get_running_loop().time() + 5)
        await asyncio.sleep(0.05)
        assert connection in site.state.connections
        assert not reader.at_eof()
        connection.tick(asyncio.get_running_loop().time() + 60)
        if "message" in _name(SLOW, sent) or "prefix" in _name(SLOW, sent):  # the call alone is ended
            await until(lambda: not connection._streams)
            await reader.readuntil(b"did not come in time")
        else:
            while await reader.read(65_536):
                pass

    asyncio.run(at_site(work))


def _name(table: dict[str, bytes], value: bytes) -> str:
    return next(name for name, each in table.items() if each == value)


@served
async def test_connections_are_bounded(site: Site) -> None:
    site.state.max_connections = 3
    held = [await site.raw() for _ in range(3)]
    await until(lambda: len(site.state.connections) == 3)
    reader, _ = await site.raw()
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    assert len(site.state.connections) == 3
    for _, writer in held:
        writer.close()
    await until(lambda: not site.state.connections)
    assert (await site.stub.ModelInfer(request(b"good"))).raw_output_contents == [b"good"]


@served
async def test_a_client_that_reads_nothing_is_not_buffered_for(site: Site) -> None:
    call = site.stub.ModelStreamInfer(stream(request(b"x" * 900_000, times=200)))
    await call.read()
    await asyncio.sleep(0.5)
    connection = only_connection(site)
    assert connection._client.get_write_buffer_size() < 20 * MAX_BYTES
    call.cancel()


@served
async def test_a_client_that_takes_nothing_is_hung_up_on_at_the_end(site: Site) -> None:
    call = site.stub.ModelStreamInfer(stream(request(b"x" * 900_000, times=200)))
    await call.read()
    connection = only_connection(site)
    connection.close()
    await asyncio.sleep(0.05)
    connection.tick(asyncio.get_running_loop().time() + 11)
    await until(lambda: not site.state.connections)
    call.cancel()


def test_limits_are_those_that_docs_state() -> None:
    assert (grpc_relay._GREETING_S, grpc_relay._FRAME_S, client_streams._MESSAGE_S) == (10.0, 30.0, 30.0)


@served
async def test_a_stream_that_names_a_version_is_marked_until_its_end(site: Site) -> None:
    with tempfile.TemporaryDirectory() as folder:
        site.left.run_dir = Path(folder)

        async def marks_during(version: str) -> list[str]:
            asked = request(name="wait")
            asked.model_version = version
            call = site.stub.ModelStreamInfer(stream(asked))
            await anext(aiter(call))
            marks = [path.name for path in Path(folder).glob("pinned/*")]
            call.cancel()
            await until(lambda: not list(Path(folder).glob("pinned/*")))
            return marks

        assert await marks_during("") == []
        [mark] = await marks_during("2")
        assert mark == site.triton.metadata[-1]["trireme-stream"]
