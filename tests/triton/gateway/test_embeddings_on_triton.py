# SPDX-License-Identifier: Apache-2.0
"""Embeddings on the real server: by OpenAI's official client through a gateway, and by Triton's own clients.

The encoder is small, and each vector is compared with plain numpy of the same weights.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import tritonclient.grpc
import tritonclient.http
from gateway_process import GatewayProcess
from numpy.typing import NDArray
from openai import AsyncOpenAI, OpenAI
from running_server import RunningServer, deployment_text
from small_encoder import MAX_POSITIONS, WIDTH, ids_of, vector_of, write_encoder

from clients.embedding_messages import EmbeddingRequest
from clients.streaming import AsyncTritonClient
from ensemble_configs.render.embedding_tensors import IDS, NUM_TOKENS, TEXTS, VECTORS

WAIT_S = 60.0
WORDS = "a long text that is longer than others, as texts are here and there."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("encoder")


@pytest.fixture(scope="module")
def weights(folder: Path) -> dict[str, NDArray[np.float32]]:
    return write_encoder(folder)


def model(folder: Path, name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "dir": str(folder), "pooling": "mean", "max_tokens": MAX_POSITIONS, **fields}


@pytest.fixture(scope="module")
def server(
    folder: Path, weights: dict[str, NDArray[np.float32]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    del weights
    models = [
        model(folder, "small", max_batch_size=8, batch_wait_ms=5.0),
        model(folder, "first", pooling="cls", is_truncatable=True, prefix="query: "),
        model(folder, "narrow", max_queue_size=1, batch_wait_ms=1000.0),
    ]
    text = deployment_text("embeds", engine={"provider": "simulated"}, embedding_models=models)
    with RunningServer(text, tmp_path_factory.mktemp("embeds")) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(server, tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture(scope="module")
def client(gateway: GatewayProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=gateway.url, api_key="none", max_retries=0) as connected:
        yield connected


@pytest.fixture
def reference(weights: dict[str, NDArray[np.float32]]) -> Any:
    return lambda text, pooling="mean": pytest.approx(vector_of(weights, ids_of(text), pooling=pooling), abs=2e-5)


@pytest.mark.parametrize("encoding_format", [None, "float", "base64"])
def test_the_official_client_gets_the_model_s_vectors(client: OpenAI, reference: Any, encoding_format: Any) -> None:
    texts = ["hello", "what is the capital of france?", "ünïcode 猫"]
    more = {} if encoding_format is None else {"encoding_format": encoding_format}
    answer = client.embeddings.create(model="small", input=texts, **more)
    assert answer.model == "small"
    assert [each.index for each in answer.data] == [0, 1, 2]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(len(ids_of(text)) for text in texts)
    if encoding_format != "base64":  # which the client leaves as it is where it was asked for by name
        for text, each in zip(texts, answer.data, strict=True):
            assert each.embedding == reference(text)


def test_a_text_token_ids_and_lists_of_these_are_inputs(client: OpenAI, reference: Any) -> None:
    ids = ids_of("hello")
    for given in ("hello", ids, [ids, ids_of("what is it?")]):
        assert client.embeddings.create(model="small", input=given).data[0].embedding == reference("hello")


def test_more_texts_than_a_batch_holds_come_back_in_their_order(client: OpenAI, reference: Any) -> None:
    texts = [WORDS[: 1 + number % 60] for number in range(100)]
    answer = client.embeddings.create(model="small", input=texts)
    for text, each in zip(texts, answer.data, strict=True):
        assert each.embedding == reference(text)


def test_requests_of_many_callers_are_joined_and_each_gets_its_own(
    server: RunningServer, gateway: GatewayProcess, reference: Any
) -> None:
    def executions() -> float:
        return server.metric("nv_inference_exec_count", model="small")

    texts = [WORDS[: 1 + (7 * number) % 60] for number in range(96)]
    before = executions()

    async def ask_all() -> list[Any]:
        async with AsyncOpenAI(base_url=gateway.url, api_key="none", max_retries=0) as caller:
            asked = (caller.embeddings.create(model="small", input=text) for text in texts)
            return await asyncio.gather(*asked)

    for text, answer in zip(texts, asyncio.run(ask_all()), strict=True):
        assert answer.data[0].embedding == reference(text)
        assert answer.usage.prompt_tokens == len(ids_of(text))
    assert executions() - before < len(texts) / 2


def test_what_is_too_long_is_refused_by_its_place_and_its_neighbours_are_not(
    client: OpenAI, gateway: GatewayProcess
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model="small", input=["a"] * 9 + ["b " * MAX_POSITIONS])
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
    assert f"input[9] has {MAX_POSITIONS + 2} tokens, and small takes at most {MAX_POSITIONS}" in str(refused.value)

    async def ask_both() -> list[Any]:
        async with AsyncOpenAI(base_url=gateway.url, api_key="none", max_retries=0) as caller:
            asked = (caller.embeddings.create(model="small", input=text) for text in ("a", "b " * 99, "c"))
            return await asyncio.gather(*asked, return_exceptions=True)

    first, long, last = asyncio.run(ask_both())
    assert isinstance(long, openai.BadRequestError)
    assert len(first.data) == len(last.data) == 1


def test_dimensions_are_for_models_that_were_trained_for_them(
    client: OpenAI, weights: dict[str, NDArray[np.float32]]
) -> None:
    beginning = vector_of(weights, ids_of("query: hello"), pooling="cls")[:5]
    [cut] = client.embeddings.create(model="first", input="hello", dimensions=5).data
    assert cut.embedding == pytest.approx(beginning / np.linalg.norm(beginning), abs=2e-5)
    for name, dimensions, said in (("small", 5, f"must be {WIDTH} of small"), ("first", 99, f"from 1 to {WIDTH}")):
        with pytest.raises(openai.BadRequestError, match=said) as refused:
            client.embeddings.create(model=name, input="hello", dimensions=dimensions)
        assert refused.value.param == "dimensions"


def test_wrong_inputs_have_the_client_s_own_types(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        client.embeddings.create(model="small", input=[99_999])
    assert wrong.value.param == "input"
    with pytest.raises(openai.BadRequestError, match="writes text") as text:
        client.embeddings.create(model="embeds", input="hello")
    assert text.value.code == "unsupported_model"
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="text-embedding-3-small", input="hello")


def test_a_full_queue_is_told_as_such(gateway: GatewayProcess) -> None:
    async def ask_all() -> list[Any]:
        async with AsyncOpenAI(base_url=gateway.url, api_key="none", max_retries=0) as caller:
            asked = (caller.embeddings.create(model="narrow", input="hello") for _ in range(4))
            return await asyncio.gather(*asked, return_exceptions=True)

    answers = asyncio.run(ask_all())
    refused = [each for each in answers if isinstance(each, openai.RateLimitError)]
    assert refused
    assert all(each.code == "overloaded" for each in refused)
    assert any(not isinstance(each, Exception) for each in answers)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_triton_s_own_clients_get_them_by_the_contract(server: RunningServer, reference: Any, protocol: str) -> None:
    library: Any = tritonclient.grpc if protocol == "grpc" else tritonclient.http
    port = server.grpc_port if protocol == "grpc" else server.http_port
    texts = ["hello", "what is the capital of france?"]
    with library.InferenceServerClient(f"127.0.0.1:{port}") as connected:
        given = library.InferInput(TEXTS, [2, 1], "BYTES")
        given.set_data_from_numpy(np.array([[text.encode()] for text in texts], np.object_))
        result = connected.infer("small", [given])
        for text, vector, count in zip(texts, result.as_numpy(VECTORS), result.as_numpy(NUM_TOKENS), strict=True):
            assert vector == reference(text)
            assert count.tolist() == [len(ids_of(text))]
        ids = ids_of("hello")
        given = library.InferInput(IDS, [1, len(ids)], "INT32")
        given.set_data_from_numpy(np.array([ids], np.int32))
        outputs = [library.InferRequestedOutput(VECTORS)]
        assert connected.infer("small", [given], outputs=outputs).as_numpy(VECTORS)[0] == reference("hello")
        given = library.InferInput(TEXTS, [2, 1], "BYTES")
        given.set_data_from_numpy(np.array([[b"a"], [b""]], np.object_))
        with pytest.raises(Exception, match=rf"\[INVALID_ARG field={TEXTS} index=1\] {TEXTS} is empty"):
            connected.infer("small", [given])


def test_a_model_s_process_that_dies_is_started_again(server: RunningServer, client: OpenAI, reference: Any) -> None:
    server.stub("small").kill()
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            answer = client.embeddings.create(model="small", input="hello", timeout=10)
        except openai.APIStatusError as exc:
            if exc.status_code not in (500, 503) or time.monotonic() > deadline_s:
                raise
            time.sleep(0.2)
        else:
            break
    assert answer.data[0].embedding == reference("hello")


def test_the_asynchronous_client_of_the_contract_asks_as_the_gateway_does(
    server: RunningServer, reference: Any
) -> None:
    async def ask() -> Any:
        async with AsyncTritonClient(server.url) as connected:
            return await connected.embed(EmbeddingRequest(texts=("hello", "bye")), model="small", timeout_s=30)

    found = asyncio.run(ask())
    assert found.num_tokens == (len(ids_of("hello")), len(ids_of("bye")))
    assert np.frombuffer(found.vectors[1], np.float32) == reference("bye")
