# SPDX-License-Identifier: Apache-2.0
"""A request between Envoy and the picker, message by message, in each way that Envoy passes bodies."""

import json
from typing import Any

import pytest

from gateway.picker.envoy_messages import FULL_DUPLEX_STREAMED, NO_BODY, ProcessingRequest, ProcessingResponse
from gateway.picker.picked_request import ENDPOINT, PickedRequest
from gateway.picker.prompt_of_body import Prompt
from gateway.servers.server import Server
from trireme.base.errors import Unavailable

BUFFERED = 2
NO_CLIENT: Any = None
BODY = json.dumps({"model": "chat", "messages": [{"role": "user", "content": "Hi"}]}).encode()


class Picks:
    """The picks of a test, and what they were made of."""

    def __init__(self) -> None:
        self.servers = {each: Server(each, NO_CLIENT, ["ensemble"]) for each in ("10.0.0.1:8000", "10.0.0.2:8000")}
        self.asked: list[tuple[Prompt, frozenset[str] | None]] = []
        self.is_away = False

    def pick(self, prompt: Prompt, allowed: frozenset[str] | None) -> dict[str, Server]:
        self.asked.append((prompt, allowed))
        if self.is_away:
            raise Unavailable("none of the 2 servers takes requests", reason="no_server")
        return self.servers


@pytest.fixture
def picks() -> Picks:
    return Picks()


def head(mode: int, *, is_end: bool = False, path: str = "/v1/chat/completions") -> Any:
    told = ProcessingRequest()
    told.request_headers.end_of_stream = is_end
    said = told.request_headers.headers.headers.add()
    said.key, said.raw_value = ":path", path.encode()
    told.protocol_config.request_body_mode = told.protocol_config.response_body_mode = mode
    return told


def part(body: bytes, *, is_end: bool = True) -> Any:
    told = ProcessingRequest()
    told.request_body.body, told.request_body.end_of_stream = body, is_end
    return told


def answered(status: str) -> Any:
    told = ProcessingRequest()
    said = told.response_headers.headers.headers.add()
    said.key, said.raw_value = ":status", status.encode()
    return told


def said(request: PickedRequest, *told: Any) -> list[Any]:
    """Return the answers to some messages, as they come over the wire."""
    answers = [
        answer for each in told for answer in request.hear(ProcessingRequest.FromString(each.SerializeToString()))
    ]
    return [ProcessingResponse.FromString(answer.SerializeToString()) for answer in answers]


def kinds(answers: list[Any]) -> list[str]:
    return [answer.WhichOneof("response") for answer in answers]


def endpoints(answer: Any) -> str:
    """Return the endpoints of a pick, which the header and the metadata have alike."""
    [chosen] = getattr(answer, answer.WhichOneof("response")).response.header_mutation.set_headers
    assert chosen.header.key == ENDPOINT
    text: str = chosen.header.raw_value.decode()
    assert dict(answer.dynamic_metadata["envoy.lb"]) == {ENDPOINT: text}
    return text


def test_a_streamed_body_is_picked_by_and_comes_back_whole(picks: Picks) -> None:
    request = PickedRequest(picks.pick)
    assert said(request, head(FULL_DUPLEX_STREAMED), part(BODY[:10], is_end=False)) == []
    first, *pieces = said(request, part(BODY[10:]))
    assert (first.WhichOneof("response"), endpoints(first)) == ("request_headers", "10.0.0.1:8000,10.0.0.2:8000")
    assert kinds(pieces) == ["request_body"]
    streamed = [each.request_body.response.body_mutation.streamed_response for each in pieces]
    assert [(each.body, each.end_of_stream) for each in streamed] == [(BODY, True)]
    [(prompt, allowed)] = picks.asked
    assert (prompt.model, len(prompt.numbers), allowed) == ("chat", 1, None)


def test_a_long_streamed_body_comes_back_in_pieces_that_envoy_takes(picks: Picks) -> None:
    request = PickedRequest(picks.pick)
    body = b"x" * 150_000
    _, *pieces = said(request, head(FULL_DUPLEX_STREAMED), part(body))
    streamed = [each.request_body.response.body_mutation.streamed_response for each in pieces]
    assert b"".join(each.body for each in streamed) == body
    assert max(len(each.body) for each in streamed) <= 65536
    assert [each.end_of_stream for each in streamed] == [False, False, True]


def test_a_streamed_body_with_trailers_is_picked_by_when_they_come(picks: Picks) -> None:
    request = PickedRequest(picks.pick)
    trailers = ProcessingRequest()
    trailers.request_trailers.SetInParent()
    answers = said(request, head(FULL_DUPLEX_STREAMED), part(BODY, is_end=False), trailers)
    assert kinds(answers) == ["request_headers", "request_body", "request_trailers"]
    assert not answers[1].request_body.response.body_mutation.streamed_response.end_of_stream


def test_a_buffered_body_is_picked_by_once_the_head_has_its_answer(picks: Picks) -> None:
    request = PickedRequest(picks.pick)
    [first] = said(request, head(BUFFERED))
    assert first.WhichOneof("response") == "request_headers"
    assert len(first.dynamic_metadata) == 0
    [second] = said(request, part(BODY))
    assert (second.WhichOneof("response"), endpoints(second)) == ("request_body", "10.0.0.1:8000,10.0.0.2:8000")


@pytest.mark.parametrize(("mode", "is_end"), [(NO_BODY, False), (BUFFERED, True), (FULL_DUPLEX_STREAMED, True)])
def test_a_request_whose_body_is_not_seen_is_picked_by_its_head(picks: Picks, mode: int, *, is_end: bool) -> None:
    [answer] = said(PickedRequest(picks.pick), head(mode, is_end=is_end, path="/v2/models/ensemble/ready"))
    assert (answer.WhichOneof("response"), endpoints(answer)) == ("request_headers", "10.0.0.1:8000,10.0.0.2:8000")
    assert picks.asked == [(Prompt("ensemble"), None)]


def test_where_no_server_takes_it_the_caller_gets_503(picks: Picks) -> None:
    picks.is_away = True
    for mode, told in ((FULL_DUPLEX_STREAMED, 2), (BUFFERED, 2), (NO_BODY, 1)):
        request = PickedRequest(picks.pick)
        answer = said(request, *[head(mode), part(BODY)][:told])[-1]
        request.close()
        assert answer.immediate_response.status.code == 503
        assert json.loads(answer.immediate_response.body)["error"]["code"] == "unavailable"


def test_a_body_that_is_too_long_is_refused_and_not_kept(picks: Picks) -> None:
    request = PickedRequest(picks.pick)
    answers = said(request, head(BUFFERED), *(part(b"x" * (1 << 20), is_end=False) for _ in range(17)))
    assert answers[-1].immediate_response.status.code == 413
    assert picks.asked == []


def test_a_request_runs_at_its_server_until_envoy_is_done_and_its_prompt_is_known_there_once_it_answers(
    picks: Picks,
) -> None:
    picked = picks.servers["10.0.0.1:8000"]
    request = PickedRequest(picks.pick)
    said(request, head(FULL_DUPLEX_STREAMED), part(BODY))
    assert picked.num_running == 1
    numbers = picks.asked[0][0].numbers
    assert picked.prefixes.num_had(numbers) == 0
    assert kinds(said(request, answered("200"))) == ["response_headers"]
    assert picked.prefixes.num_had(numbers) == 1
    piece = ProcessingRequest()
    piece.response_body.body, piece.response_body.end_of_stream = b"data: 1\n\n", True
    [passed_on] = said(request, piece)
    streamed = passed_on.response_body.response.body_mutation.streamed_response
    assert (streamed.body, streamed.end_of_stream) == (b"data: 1\n\n", True)
    assert picked.num_running == 1
    request.close()
    assert picked.num_running == 0


def test_a_prompt_that_was_refused_is_not_taken_for_known(picks: Picks) -> None:
    request = PickedRequest(picks.pick)
    said(request, head(BUFFERED), part(BODY), answered("429"))
    assert picks.servers["10.0.0.1:8000"].prefixes.num_had(picks.asked[0][0].numbers) == 0


@pytest.mark.parametrize("kind", ["a list", "a text"])
def test_envoy_may_say_which_endpoints_are_allowed(picks: Picks, kind: str) -> None:
    told = head(NO_BODY)
    space = told.metadata_context.filter_metadata.add(key="envoy.lb.subset_hint")
    given = ["10.0.0.2:8000", "10.0.0.3:8000"]
    space.value.update({"x-gateway-destination-endpoint-subset": given if kind == "a list" else ", ".join(given)})
    said(PickedRequest(picks.pick), told)
    assert picks.asked[0][1] == frozenset(given)


def test_no_endpoint_is_allowed_where_the_list_is_empty(picks: Picks) -> None:
    told = head(NO_BODY)
    space = told.metadata_context.filter_metadata.add(key="envoy.lb.subset_hint")
    space.value.update({"x-gateway-destination-endpoint-subset": []})
    said(PickedRequest(picks.pick), told)
    assert picks.asked[0][1] == frozenset()
