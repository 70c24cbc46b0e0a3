# SPDX-License-Identifier: Apache-2.0
"""The client of embeddings against Triton's wire: what it sends, what it makes of answers, and its typed errors."""

import asyncio
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kserve_server import KServeServer
from scripted_embeddings import answer, rows_of, vector_of

from trireme.base.free_ports import free_ports
from trireme.client import AsyncTritonClient, EmbeddingRequest, TritonClient
from trireme.errors import QueueFull, RequestCancelled, RequestError, RequestTimeout, ServerError, Unavailable


@pytest.fixture
def server() -> Iterator[KServeServer]:
    with KServeServer() as running:
        running.whole = answer
        yield running


def late(message: Any) -> Any:
    time.sleep(1)
    return answer(message)


def test_texts_come_back_as_vectors_with_their_tokens(server: KServeServer) -> None:
    with TritonClient(server.url) as client:
        found = client.embed(EmbeddingRequest(texts=("Hi", "you")), model="embed")
    assert [list(struct.unpack("<3f", vector)) for vector in found.vectors] == [vector_of(b"Hi"), vector_of(b"you")]
    assert found.num_tokens == (2, 3)
    [asked] = server.requests
    assert (asked.model_name, rows_of(asked)) == ("embed", [b"Hi", b"you"])
    assert asked.id


@pytest.mark.parametrize(
    ("said", "error", "facts"),
    [
        ("[INVALID_ARG field=text_input index=1] text_input is empty", RequestError, {"field": "text_input"}),
        ("Exceeds maximum queue size", QueueFull, {"reason": "queue_full"}),
        ("[UNAVAILABLE reason=draining] it goes", Unavailable, {"reason": "draining"}),
    ],
)
def test_what_a_server_refuses_has_its_type(
    server: KServeServer, said: str, error: type[Exception], facts: dict[str, str]
) -> None:
    server.whole = lambda _message: said
    with TritonClient(server.url) as client, pytest.raises(error) as refused:
        client.embed(EmbeddingRequest(texts=("Hi",)), model="embed")
    told: Any = refused.value
    assert told.facts.items() >= facts.items()


def test_an_answer_that_is_not_of_the_contract_is_the_server_s_fault(server: KServeServer) -> None:
    server.whole = lambda message: type(answer(message))()
    with TritonClient(server.url) as client, pytest.raises(ServerError, match="not of the serving contract"):
        client.embed(EmbeddingRequest(texts=("Hi",)), model="embed")


def test_a_server_that_is_away_and_one_that_is_slow_are_told_apart(server: KServeServer) -> None:
    [port] = free_ports(1)
    with TritonClient(f"127.0.0.1:{port}") as client, pytest.raises(Unavailable):
        client.embed(EmbeddingRequest(texts=("Hi",)), model="embed", timeout_s=20)
    server.whole = late
    with TritonClient(server.url) as client, pytest.raises(RequestTimeout):
        client.embed(EmbeddingRequest(texts=("Hi",)), model="embed", timeout_s=0.1)


def test_closing_the_client_ends_what_runs(server: KServeServer) -> None:
    server.whole = late

    async def ask() -> None:
        client = AsyncTritonClient(server.url)
        asked = asyncio.create_task(client.embed(EmbeddingRequest(texts=("Hi",)), model="embed"))
        while not server.requests:
            await asyncio.sleep(0.01)
        await client.close()
        await asked

    with pytest.raises((RequestCancelled, Unavailable)):
        asyncio.run(ask())
