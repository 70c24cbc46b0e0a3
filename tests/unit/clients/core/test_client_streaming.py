# SPDX-License-Identifier: Apache-2.0
"""The streaming client against Triton's wire: what it sends, what it makes of responses, and how a stream ends."""

import asyncio
import contextlib
import gc
import sys
import threading
import time

import grpc.aio
import pytest
from kserve_server import DIE, HANG, WAIT_S, KServeServer, response, story

from clients import stream_call
from clients.streaming import AsyncTritonClient, GenerateChunk, GenerateRequest, TritonClient
from trireme.base.errors import (
    RequestCancelled,
    RequestError,
    RequestTimeout,
    ServerError,
    ServingError,
    Unavailable,
)

REQUEST = GenerateRequest(text_input="hi", max_tokens=4)


def read_all(
    server: KServeServer,
    *,
    timeout_s: float | None = None,
    idle_timeout_s: float | None = WAIT_S,
    silence_s: float | None = None,
) -> list[GenerateChunk]:
    async def read() -> list[GenerateChunk]:
        async with AsyncTritonClient(server.url) as client:
            stream = client.generate(REQUEST, timeout_s=timeout_s, idle_timeout_s=idle_timeout_s, silence_s=silence_s)
            return [chunk async for chunk in stream]

    return asyncio.run(read())


def test_a_router_in_between_is_told_the_model() -> None:
    with KServeServer(*story()) as server:
        read_all(server)
    [metadata] = server.stream_metadata
    assert metadata["x-trireme-model"] == "ensemble"


def test_chunks_carry_text_counts_and_the_finish_reason_in_order() -> None:
    with KServeServer(*story()) as server:
        chunks = read_all(server)

    assert [chunk.text for chunk in chunks] == ["Once", " upon", " ünd"]
    assert [chunk.num_output_tokens for chunk in chunks] == [1, 2, 1]
    assert [chunk.num_input_tokens for chunk in chunks] == [4, None, None]
    assert [chunk.finish_reason for chunk in chunks] == [None, None, "length"]
    assert [chunk.is_final for chunk in chunks] == [False, False, True]
    assert [chunk.received_ns for chunk in chunks] == sorted(chunk.received_ns for chunk in chunks)


def test_a_chunk_is_there_before_the_server_makes_the_next() -> None:
    may_go_on = threading.Event()
    first, second, last = story()

    async def read(url: str) -> int:
        count = 0
        async with AsyncTritonClient(url) as client:
            async for _ in client.generate(REQUEST):
                count += 1
                may_go_on.set()
        return count

    with KServeServer(first, may_go_on, second, last) as server:
        assert asyncio.run(read(server.url)) == 3


def test_an_empty_final_response_ends_the_stream_and_is_no_chunk() -> None:
    with KServeServer(response("all"), response(final=True)) as server:
        assert [(chunk.text, chunk.is_final) for chunk in read_all(server)] == [("all", False)]


def test_a_call_that_ends_while_its_end_is_being_said_has_ended_well(monkeypatch: pytest.MonkeyPatch) -> None:
    async def too_late(_: object) -> None:
        raise grpc.aio.InternalError('Failed "execute_batch"')

    monkeypatch.setattr(grpc.aio.StreamStreamCall, "done_writing", too_late)
    with KServeServer(*story()) as server:
        assert [chunk.text for chunk in read_all(server)] == ["Once", " upon", " ünd"]


def test_after_an_error_the_stream_is_let_end_and_not_cancelled() -> None:
    wrong = "[INVALID_ARG field=top_p] top_p is wrong"
    with KServeServer(wrong, 0.1) as server, pytest.raises(RequestError, match="top_p is wrong"):
        read_all(server)
    assert not server.was_cancelled.is_set()


def test_an_error_is_not_kept_from_the_caller_by_a_stream_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_call, "_END_S", 0.05)
    with KServeServer("[INVALID_ARG field=top_p] top_p is wrong", HANG) as server:
        with pytest.raises(RequestError, match="top_p is wrong"):
            read_all(server)
        assert server.was_cancelled.wait(WAIT_S)


def test_every_request_has_an_id_of_its_own_and_asks_for_the_empty_final_response() -> None:
    with KServeServer(*story()) as server:
        read_all(server)
        read_all(server)

    assert len({request.id for request in server.requests} - {""}) == 2
    assert all(request.parameters["triton_enable_empty_final_response"].bool_param for request in server.requests)


def test_model_version_and_request_id_are_the_caller_s_where_given() -> None:
    async def read(url: str) -> None:
        async with AsyncTritonClient(url) as client:
            async for _ in client.generate(REQUEST, model="ensemble_canary", model_version="3", request_id="r1"):
                pass

    with KServeServer(*story()) as server:
        asyncio.run(read(server.url))
    (request,) = server.requests
    assert (request.model_name, request.model_version, request.id) == ("ensemble_canary", "3", "r1")


def test_many_requests_on_one_connection_each_get_their_whole_text() -> None:
    async def read(url: str) -> list[str]:
        async with AsyncTritonClient(url) as client:

            async def one() -> str:
                return "".join([chunk.text async for chunk in client.generate(REQUEST)])

            return await asyncio.gather(*(one() for _ in range(16)))

    with KServeServer(*story()) as server:
        assert asyncio.run(read(server.url)) == ["Once upon ünd"] * 16


def test_closing_the_iterator_cancels_the_request_on_the_server() -> None:
    async def read_one(url: str) -> None:
        async with AsyncTritonClient(url) as client:
            async with contextlib.aclosing(client.generate(REQUEST)) as stream:
                async for _ in stream:
                    break
            assert await asyncio.to_thread(server.was_cancelled.wait, WAIT_S)  # the connection is still open

    with KServeServer(response("Once"), HANG) as server:
        asyncio.run(read_one(server.url))


def test_cancelling_the_reading_task_cancels_the_request_on_the_server() -> None:
    async def cancel(url: str) -> None:
        has_begun = asyncio.Event()

        async def read(client: AsyncTritonClient) -> None:
            async for _ in client.generate(REQUEST):
                has_begun.set()

        async with AsyncTritonClient(url) as client:
            task = asyncio.create_task(read(client))
            await has_begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(server.was_cancelled.wait, WAIT_S)

    with KServeServer(response("Once"), HANG) as server:
        asyncio.run(cancel(server.url))


def test_closing_the_client_ends_its_streams_with_a_typed_error() -> None:
    async def close(url: str) -> None:
        client = AsyncTritonClient(url)
        stream = client.generate(REQUEST)
        await anext(stream)
        rest = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(RequestCancelled):
            await rest

    with KServeServer(response("Once"), HANG) as server:
        asyncio.run(close(server.url))


def test_an_error_in_the_stream_is_the_typed_exception_of_its_token() -> None:
    text = "in ensemble 'ensemble', [INVALID_ARG field=top_p value=1.5] top_p must be within 0 and 1"
    with KServeServer(response("Once"), text) as server, pytest.raises(RequestError) as caught:
        read_all(server)

    assert caught.value.facts == {"field": "top_p", "value": 1.5}
    assert caught.value.message == "top_p must be within 0 and 1"


@pytest.mark.parametrize(
    "end",
    [[DIE], [], [grpc.StatusCode.CANCELLED]],  # the last is what a grpc server's stop() says, where it says anything
    ids=["connection broken", "stream ended", "call cancelled by the server"],
)
def test_a_stream_that_ends_before_its_final_response_is_unavailable(end: list[object]) -> None:
    with KServeServer(response("Once"), *end) as server, pytest.raises(Unavailable) as caught:
        read_all(server)

    assert caught.value.facts["reason"] == "connection_lost"


def test_a_connection_lost_after_the_final_response_is_no_error() -> None:
    with KServeServer(*story(), DIE) as server:
        assert len(read_all(server)) == 3


def test_no_server_is_unavailable_and_says_how_to_start_one() -> None:
    with KServeServer() as server:
        pass
    with pytest.raises(Unavailable, match="make serve") as caught:
        read_all(server)

    assert caught.value.facts == {"reason": "unreachable", "address": server.url}


def test_the_whole_request_may_take_timeout_s_and_is_cancelled_then() -> None:
    with KServeServer(response("Once"), HANG) as server:
        with pytest.raises(RequestTimeout):
            read_all(server, timeout_s=0.2)
        assert server.was_cancelled.wait(WAIT_S)


def test_a_silent_server_is_unavailable_after_idle_timeout_s_and_the_request_is_cancelled() -> None:
    with KServeServer(response("Once"), HANG) as server:
        with pytest.raises(Unavailable) as caught:
            read_all(server, idle_timeout_s=0.2)
        assert caught.value.facts["reason"] == "silent"
        assert server.was_cancelled.wait(WAIT_S)


def test_a_stream_longer_than_the_idle_timeout_is_not_idle() -> None:
    with KServeServer(response("a"), 0.3, response("b"), 0.3, response("c", final=True)) as server:
        assert len(read_all(server, idle_timeout_s=0.5)) == 3


@pytest.mark.parametrize("idle_timeout_s", [WAIT_S, None])
def test_silence_behind_the_first_response_has_a_limit_of_its_own(idle_timeout_s: float | None) -> None:
    with KServeServer(0.6, response("a"), 0.1, response("b"), HANG) as server:
        with pytest.raises(Unavailable, match=r"0\.3 s") as caught:
            read_all(server, idle_timeout_s=idle_timeout_s, silence_s=0.3)
        assert caught.value.facts["reason"] == "silent"
        assert server.was_cancelled.wait(WAIT_S)


def test_a_slow_reader_is_not_a_silent_server() -> None:
    async def read(url: str) -> int:
        count = 0
        async with AsyncTritonClient(url) as client:
            async for _ in client.generate(REQUEST, idle_timeout_s=0.3):
                count += 1
                await asyncio.sleep(0.35)
        return count

    with KServeServer(*story()) as server:
        assert asyncio.run(read(server.url)) == 3


def test_a_tensor_without_data_is_an_error_and_not_an_empty_text() -> None:
    broken = response("Once", final=True)
    broken.infer_response.raw_output_contents[0] = b""
    with KServeServer(broken) as server, pytest.raises(ServerError, match="0 bytes"):
        read_all(server)


def test_ready_means_the_server_and_the_model() -> None:
    async def ask(url: str) -> tuple[bool, bool]:
        async with AsyncTritonClient(url) as client:
            return await client.is_ready(), await client.is_ready(model="other")

    with KServeServer() as server:
        assert asyncio.run(ask(server.url)) == (True, False)
    assert asyncio.run(ask(server.url)) == (False, False)


@pytest.mark.parametrize("url", ["http://localhost:8001", "localhost", ""])
def test_an_url_that_is_not_host_and_port_is_refused(url: str) -> None:
    with pytest.raises(RequestError, match="host:port"):
        TritonClient(url)


def test_the_sync_client_reads_the_same_chunks() -> None:
    with KServeServer(*story()) as server, TritonClient(server.url) as client:
        assert client.is_ready()
        assert [chunk.text for chunk in client.generate(REQUEST)] == ["Once", " upon", " ünd"]


def test_the_sync_client_raises_the_same_errors() -> None:
    with KServeServer("[DEADLINE] too late") as server, TritonClient(server.url) as client:
        with pytest.raises(ServingError) as caught:
            list(client.generate(REQUEST))
        assert type(caught.value) is RequestTimeout


def test_closing_the_sync_iterator_cancels_the_request_on_the_server() -> None:
    with KServeServer(response("Once"), HANG) as server, TritonClient(server.url) as client:
        with contextlib.closing(client.generate(REQUEST)) as stream:
            next(stream)
        assert server.was_cancelled.wait(WAIT_S)


def test_a_chunk_is_stamped_when_it_comes() -> None:
    with KServeServer(response("a"), 0.2, response("b", final=True)) as server:
        before_ns = time.monotonic_ns()
        first, second = read_all(server)

    assert before_ns < first.received_ns < second.received_ns < time.monotonic_ns()
    assert second.received_ns - first.received_ns > 50e6


def test_a_stream_that_is_left_early_ends_with_the_client_and_without_a_complaint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    complaints: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    with KServeServer(response("Once"), HANG) as server:
        with TritonClient(server.url) as client:
            stream = client.generate(REQUEST)
            assert next(stream).text == "Once"
        assert server.was_cancelled.wait(WAIT_S)
        del stream
        gc.collect()
    assert complaints == []
