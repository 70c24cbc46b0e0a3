# SPDX-License-Identifier: Apache-2.0
"""Log probabilities of an answer's tokens: each told once, with its text, whole and streamed."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from kserve_server import KServeServer, response
from running_gateway import RunningGateway
from simulated_release import TOKENIZER

from ensemble_configs.spec.release_spec import TokenizerSpec
from gateway.served_models import ServedModel
from serving.text.token_texts import TokenTexts
from serving.text.tokenizer_files import load_tokenizer

if TYPE_CHECKING:
    from openai import OpenAI

SPEC = TokenizerSpec(dir=TOKENIZER)
MODEL = ServedModel("demo", "ensemble", 100, tokenizer=SPEC)
TEXT = "Once upon ünd"
LOG_PROBS = [-0.5 * number for number in range(40)]


def script() -> list[Any]:
    """Return the responses of an answer that is cut into tokens, two at a time; the last one says nothing."""
    ids = [*load_tokenizer(TOKENIZER).encode(TEXT, add_special_tokens=False).ids, 0]
    assert TokenTexts(SPEC).bytes_of(0) == b""
    steps, text = [], TEXT
    for begin in range(0, len(ids), 2):
        is_last = begin + 2 >= len(ids)
        new, text = (text, "") if is_last else (text[:1], text[1:])
        steps.append(
            response(
                new, num_output_tokens=2, num_input_tokens=4, token_ids=ids[begin : begin + 2],
                log_probs=LOG_PROBS[begin : begin + 2][: len(ids) - begin],
                finish_reason="stop" if is_last else None, final=is_last,
            )
        )  # fmt: skip
    return steps


@pytest.fixture
def server() -> Iterator[KServeServer]:
    with KServeServer(*script()) as running:
        yield running


@pytest.fixture
def client(server: KServeServer) -> "Iterator[OpenAI]":
    from openai import OpenAI

    with (
        RunningGateway(server.url, models=(MODEL,)) as gateway,
        OpenAI(base_url=gateway.url, api_key="none", max_retries=0) as made,
    ):
        yield made


def check(tokens: list[bytes], log_probs: list[float]) -> None:
    assert b"".join(tokens).decode() == TEXT
    assert log_probs == LOG_PROBS[: len(tokens)]


@pytest.mark.parametrize("is_streaming", [False, True], ids=["whole", "stream"])
def test_a_chat_tells_of_each_token_once(client: "OpenAI", server: KServeServer, *, is_streaming: bool) -> None:
    asked: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "logprobs": True}
    if is_streaming:
        events = list(client.chat.completions.create(**asked, stream=True))
        told = [event.choices[0].logprobs for event in events]
    else:
        told = [client.chat.completions.create(**asked).choices[0].logprobs]
    found = [token for each in told if each is not None for token in each.content or []]
    check([bytes(token.bytes or []) for token in found], [token.logprob for token in found])
    assert all(token.top_logprobs == [] for token in found)
    sent = {tensor.name for tensor in server.requests[0].inputs}
    assert sent >= {"return_log_probs", "return_token_ids"}


@pytest.mark.parametrize("is_streaming", [False, True], ids=["whole", "stream"])
def test_a_text_tells_where_each_token_is(client: "OpenAI", *, is_streaming: bool) -> None:
    asked: dict[str, Any] = {"model": "demo", "prompt": "Hi", "logprobs": 0}
    if is_streaming:
        told = [event.choices[0].logprobs for event in client.completions.create(**asked, stream=True)]
    else:
        told = [client.completions.create(**asked).choices[0].logprobs]
    tokens = [token for each in told if each for token in each.tokens or []]
    offsets = [offset for each in told if each for offset in each.text_offset or []]
    log_probs = [value for each in told if each for value in each.token_logprobs or []]
    assert offsets == [len("".join(tokens[:index])) for index in range(len(tokens))]
    assert log_probs == LOG_PROBS[: len(tokens)]
    assert "".join(tokens).replace("\ufffd", "").startswith("Once")


@pytest.mark.parametrize("body", [{"logprobs": 2}, {"logprobs": 0, "echo": True}], ids=["others", "echo"])
def test_what_the_server_cannot_tell_is_refused_by_name(server: KServeServer, body: dict[str, Any]) -> None:
    with RunningGateway(server.url, models=(MODEL,)) as gateway:
        answer = gateway.complete(**body)
        assert (answer.status, answer.json["error"]["param"]) == (400, "logprobs")


def test_a_model_that_reasons_tells_none(server: KServeServer) -> None:
    with RunningGateway(server.url, models=(MODEL._replace(is_reasoning=True),)) as gateway:
        answer = gateway.chat(logprobs=True)
        assert (answer.status, answer.json["error"]["param"]) == (400, "logprobs")
        assert "reasons" in answer.json["error"]["message"]


def test_a_server_that_sends_no_ids_has_failed() -> None:
    step = response("Once", num_output_tokens=1, num_input_tokens=4, log_probs=[-1.0], finish_reason="stop", final=True)
    with KServeServer(step) as server, RunningGateway(server.url, models=(MODEL,)) as gateway:
        assert gateway.complete(logprobs=0).status == 500


def test_the_bytes_of_all_tokens_are_those_of_the_text() -> None:
    texts, tokenizer = TokenTexts(SPEC), load_tokenizer(TOKENIZER)
    for text in (TEXT, "naïve 日本 🙂", " a  b"):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert b"".join(map(texts.bytes_of, ids)).decode() == tokenizer.decode(ids)
    assert texts.bytes_of(10**9) == b""
