# SPDX-License-Identifier: Apache-2.0
"""Responses that models send to the frontend of gRPC past Triton: real clients, and the models' own side."""

import asyncio
import functools
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import grpc.aio
import hpack
import numpy as np
import pytest
from relay_site import Site, at_site, request, served, stream, until
from tritonclient.grpc import service_pb2

from serving.frontend.grpc import http2_frames as h2
from serving.frontend.grpc.http2_frames import Frame
from serving.process.reply_socket import HEAD, reply_socket, written_name
from serving.requests.stream_message import StreamMessages

pytestmark = pytest.mark.slow


def numbers(responses: list[Any]) -> list[int]:
    """Return the numbers of the direct responses; -1: a response of Triton's."""
    found = []
    for each in responses:
        raw = each.infer_response.raw_output_contents[0]
        found.append(int.from_bytes(raw[4:8], "little") if each.infer_response.outputs else -1)
    return found


async def answers(site: Site, *requests: Any) -> list[Any]:
    return [each async for each in site.stub.ModelStreamInfer(stream(*requests))]


@served
async def test_they_come_in_their_order_and_before_what_triton_says_then(site: Site) -> None:
    asked = [request(b"abcd", direct=50, num_bytes=5), request(b"efgh"), request(b"ijkl", direct=3, times=2)]
    found = await answers(site, *asked)
    assert numbers(found) == [*range(50), -1, -1, *range(3), -1, -1]
    assert [each.infer_response.model_name for each in found[:50]] == ["ensemble"] * 50
    assert not found[0].infer_response.parameters["triton_final_response"].bool_param
    assert not site.state.direct._streams


@served
async def test_many_streams_of_several_connections_get_their_own(site: Site) -> None:
    channels = [
        grpc.aio.insecure_channel(f"127.0.0.1:{site.port}", options=[("grpc.use_local_subchannel_pool", 1)])
        for _ in range(5)
    ]

    async def one(index: int) -> None:
        stub = site.stub_of(channels[index % 5])
        name = f"r{index}"
        call = stub.ModelStreamInfer(stream(request(b"abcd", direct=40 + index, num_bytes=index * 50, name=name)))
        found = [each async for each in call]
        assert numbers(found) == [*range(40 + index), -1]
        assert {each.infer_response.id for each in found} == {name}

    await asyncio.gather(*(one(index) for index in range(60)))
    for channel in channels:
        await channel.close()


@served
async def test_they_may_be_larger_than_windows_and_tritons_own_data_goes_on(site: Site) -> None:
    large = request(b"x" * 900_000, direct=40, num_bytes=300_000, times=3)
    many = request(b"abcd", direct=3_000, num_bytes=700)
    for _ in range(2):  # windows are given back: else the connection would stand still
        found, others = await asyncio.gather(answers(site, large), answers(site, many))
        assert numbers(found) == [*range(40), -1, -1, -1]
        assert [len(each.infer_response.raw_output_contents[0]) for each in found[40:]] == [900_000] * 3
        assert numbers(others) == [*range(3_000), -1]
        echo = await site.stub.ModelInfer(request(b"y" * 900_000))
        assert len(echo.raw_output_contents[0]) == 900_000


@served
async def test_an_end_without_a_message_of_tritons_comes_behind_them(site: Site) -> None:
    call = site.stub.ModelStreamInfer(stream(request(name="abort", direct=9)))
    found = [await call.read() for _ in range(9)]
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call.read()
    assert numbers(found) == list(range(9))
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    assert failed.value.details() == "the model died"


@served
async def test_only_requests_of_streams_to_models_of_ours_are_named_to_them(site: Site) -> None:
    mine = request(b"abcd")
    mine.model_name = "mine"
    await answers(site, mine, mine)
    await site.stub.ModelInfer(request(b"abcd"))
    names = {seen["trireme-stream"] for seen in site.triton.metadata}
    assert len(names) == 2
    assert not any(site.triton.way.take(name) for name in names)
    packed = site.stub.ModelStreamInfer(stream(request(b"abcd" * 5_000)), compression=grpc.Compression.Gzip)
    assert len([each async for each in packed]) == 1
    await answers(site, mine, request(b"abcd"), request(b"abcd"))
    for seen, num_named in zip(site.triton.metadata[-2:], (1, 2), strict=True):
        taken = [site.triton.way.take(seen["trireme-stream"]) for _ in range(3)]
        assert taken == [True] * num_named + [False] * (3 - num_named)


@served
async def test_a_stream_that_asks_late_is_answered_beside_later_ones(site: Site) -> None:
    asked = asyncio.Event()

    async def late() -> AsyncIterator[Any]:
        await asked.wait()
        yield request(b"abcd", direct=5)

    waiting = site.stub.ModelStreamInfer(late())
    await asyncio.sleep(0.05)  # its headers are sent
    assert numbers(await answers(site, request(b"abcd", direct=3))) == [*range(3), -1]
    asked.set()
    assert numbers([each async for each in waiting]) == [*range(5), -1]


@served
async def test_who_leaves_gets_no_more_and_the_others_go_on(site: Site) -> None:
    left = site.stub.ModelStreamInfer(stream(request(name="wait", direct=3)))
    await left.read()
    name = site.triton.metadata[-1]["trireme-stream"]
    left.cancel()
    await until(lambda: site.left.names == [name])
    way = site.triton.way
    late = StreamMessages("ensemble", "1", "").message({"OUT": np.array([b"late"], dtype=np.object_)})
    for _ in range(1_000):
        way.put(name.encode(), late)
        way.put(b"nobodys-1", late)
    await asyncio.to_thread(way.flush)
    assert numbers(await answers(site, request(b"abcd", direct=5))) == [*range(5), -1]


@served
async def test_half_a_message_of_a_model_that_dies_is_not_sent_on(site: Site) -> None:
    waiting = site.stub.ModelStreamInfer(stream(request(name="wait", direct=1)))
    assert numbers([await waiting.read()]) == [0]
    name = site.triton.metadata[-1]["trireme-stream"].encode()
    model = socket.socket(socket.AF_UNIX)
    await asyncio.to_thread(model.connect, str(reply_socket(site.run_dir, site.left.frontend)))
    model.sendall(written_name("ensemble"))
    whole = StreamMessages("ensemble", "1", "").message({"OUT": np.array([b"\1\0\0\0"], dtype=np.object_)})
    for piece in (HEAD.pack(len(whole), len(name)) + name, whole + HEAD.pack(len(whole), len(name)) + name + whole[:9]):
        model.sendall(piece)
        await asyncio.sleep(0.02)
    model.close()
    assert numbers([await waiting.read()]) == [-1]  # Triton's own answer was first in the client's queue
    assert numbers([await waiting.read()]) == [1]
    await until(lambda: len(site.state.direct._models) == 1)
    assert numbers(await answers(site, request(b"abcd", direct=5))) == [*range(5), -1]
    waiting.cancel()


@served
async def test_the_folder_of_a_triton_that_has_ended_is_no_error(
    site: Site,
) -> None:
    gone, next_one = site.run_dir / "gone" / "ab12.replies", site.run_dir / "ab12.replies"
    site.state.direct.listen(gone)
    assert not gone.exists()
    site.state.direct.listen(next_one)
    assert next_one.is_socket()


@served
async def test_without_a_socket_nothing_is_said_of_the_way(site: Site) -> None:
    site.state.direct.close()
    assert numbers(await answers(site, request(b"abcd"))) == [-1]
    assert not site.triton.way.take(site.triton.metadata[-1]["trireme-stream"])
    assert not reply_socket(site.run_dir, site.left.frontend).exists()


def test_a_client_with_small_windows_never_gets_more_than_it_has_given() -> None:
    for first, given in ((1, 3), (100, 100), (16_000, 20_000), (0, 7_000)):
        asyncio.run(at_site(functools.partial(_with_small_windows, first=first, given=given)))


async def _with_small_windows(site: Site, first: int, given: int) -> None:
    """Ask as a client whose streams take `first` bytes, and `given` more each time that they have had all."""
    reader, writer = await site.raw()
    asked = request(b"abcd" * 500, direct=6, num_bytes=given, times=2)
    body = asked.SerializeToString()
    settings = struct.pack(">HI", h2.INITIAL_WINDOW_SIZE, first)
    path = b"/inference.GRPCInferenceService/ModelStreamInfer"
    head = hpack.Encoder().encode([
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"x"),
        (b"content-type", b"application/grpc"), (b"te", b"trailers"),
    ])  # fmt: skip
    writer.write(
        h2.PREFACE
        + h2.make_frame(h2.SETTINGS, 0, 0, settings)
        + h2.make_frame(h2.HEADERS, h2.END_HEADERS, 1, head)
        + h2.give_back(2_000_000)
        + h2.make_frame(h2.DATA, h2.END_STREAM, 1, struct.pack(">?I", False, len(body)) + body)
    )
    window, data, kinds = first, bytearray(), list[int]()
    buffer = bytearray()
    while True:
        if window <= 0:
            window += given
            writer.write(h2.give_back(given, 1))
        buffer += await reader.read(65_536)
        for frame in _frames(buffer):
            if frame.kind == h2.SETTINGS and not frame.flags & h2.ACK:
                writer.write(h2.make_frame(h2.SETTINGS, h2.ACK, 0))
            if frame.stream_id != 1:
                continue
            kinds.append(frame.kind)
            if frame.kind == h2.DATA:
                window -= len(frame.payload)
                assert window >= 0, "more than the client takes"
                data += frame.payload
            if frame.flags & h2.END_STREAM:
                assert kinds[0] == kinds[-1] == h2.HEADERS
                assert kinds.count(h2.HEADERS) == 2
                assert numbers(list(_messages(bytes(data)))) == [*range(6), -1, -1]
                return


def _frames(buffer: bytearray) -> Iterator[Frame]:
    while (frame := h2.take_frame(buffer, max_bytes=1_000_000)) is not None:
        yield frame


def _messages(data: bytes) -> Iterator[Any]:
    while data:
        end = 5 + int.from_bytes(data[1:5])
        yield service_pb2.ModelStreamInferResponse.FromString(data[5:end])
        data = data[end:]
