# SPDX-License-Identifier: Apache-2.0
"""A request on its way through Envoy: what the picker is told of it, and what it answers.

Source: the endpoint picker protocol of the Gateway API inference extension, v1.0.0; Envoy's `external_processor.proto`.
The pick is made once the body is there, for it has the prompt. Envoy passes bodies in one of three ways: not at all;
whole, after an answer to the head (`BUFFERED`); or in pieces that come back from the picker (`FULL_DUPLEX_STREAMED`),
whose head may be answered last.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from gateway.picker import envoy_messages as messages
from gateway.picker.envoy_messages import FULL_DUPLEX_STREAMED, NO_BODY, OVERWRITE_IF_EXISTS_OR_ADD
from gateway.picker.prompt_of_body import Prompt, prompt_of
from gateway.servers.server import Server
from trireme.base.errors import Unavailable

ENDPOINT, ENDPOINT_SPACE = "x-gateway-destination-endpoint", "envoy.lb"
SUBSET, SUBSET_SPACE = "x-gateway-destination-endpoint-subset", "envoy.lb.subset_hint"
_MOST_BYTES = 16 << 20
_PIECE_BYTES = 60_000  # below 64 KiB, the longest that Envoy takes of a streamed body
_UNAVAILABLE, _TOO_LARGE = 503, 413

# Envoy's messages have no types.
Told = Any
Answer = Any


class PickedRequest:
    """A request.

    Args:
        pick: returns the servers for a prompt, the best first, by their endpoints, of those that are allowed; None:
            all are.
    """

    def __init__(self, pick: Callable[[Prompt, frozenset[str] | None], dict[str, Server]]) -> None:
        self._pick = pick
        self._path = ""
        self._allowed: frozenset[str] | None = None
        self._body = bytearray()
        self._body_mode = self._response_mode = NO_BODY
        self._prompt = Prompt()
        self._picked: Server | None = None
        self._is_trial = False

    def hear(self, told: Told) -> Iterator[Answer]:
        """Yield the answers to a message of Envoy's."""
        kind = told.WhichOneof("request")
        if kind == "request_headers":
            yield from self._begin(told)
        elif kind == "request_body":
            self._body += told.request_body.body
            if len(self._body) > _MOST_BYTES:
                yield _refusal(_TOO_LARGE, "too_large", f"a body may have {_MOST_BYTES} bytes")
            elif told.request_body.end_of_stream or told.request_body.end_of_stream_without_message:
                yield from self._answer_with_body()
        elif kind == "request_trailers":
            yield from self._answer_with_body(has_trailers=True)
            yield messages.ProcessingResponse(request_trailers=messages.TrailersResponse())
        elif kind == "response_headers":
            self._note_begun(told.response_headers)
            yield messages.ProcessingResponse(response_headers=messages.HeadersResponse())
        elif kind == "response_body":
            yield self._passed_on(told.response_body)
        elif kind == "response_trailers":
            yield messages.ProcessingResponse(response_trailers=messages.TrailersResponse())

    def close(self) -> None:
        """Note that Envoy is done with the request."""
        if self._picked is not None:
            self._picked.num_running -= 1
            self._picked.breaker.leave(is_trial=self._is_trial)

    def _begin(self, told: Told) -> Iterator[Answer]:
        headers = {each.key: each.raw_value.decode(errors="replace") or each.value
                   for each in told.request_headers.headers.headers}  # fmt: skip
        self._path = headers.get(":path", "")
        self._allowed = _subset_of(told)
        self._body_mode = told.protocol_config.request_body_mode
        self._response_mode = told.protocol_config.response_body_mode
        has_body = not told.request_headers.end_of_stream and self._body_mode != NO_BODY
        if not has_body:
            yield from self._picked_at("request_headers")
        elif self._body_mode != FULL_DUPLEX_STREAMED:
            yield messages.ProcessingResponse(request_headers=messages.HeadersResponse())

    def _answer_with_body(self, *, has_trailers: bool = False) -> Iterator[Answer]:
        if self._picked is not None:
            return
        if self._body_mode != FULL_DUPLEX_STREAMED:
            yield from self._picked_at("request_body")
            return
        for answer in self._picked_at("request_headers"):
            yield answer
            if answer.WhichOneof("response") == "immediate_response":
                return
        body = bytes(self._body)
        starts = range(0, len(body), _PIECE_BYTES) or [0]
        for start in starts:
            piece = body[start : start + _PIECE_BYTES]
            is_end = start + _PIECE_BYTES >= len(body) and not has_trailers
            yield messages.ProcessingResponse(request_body=_streamed(piece, is_end=is_end))

    def _picked_at(self, field: str) -> Iterator[Answer]:
        """Yield the pick, as the answer to the head or to the body."""
        self._prompt = prompt_of(self._path, bytes(self._body))
        try:
            servers = self._pick(self._prompt, self._allowed)
        except Unavailable as exc:
            yield _refusal(_UNAVAILABLE, "unavailable", exc.message)
            return
        self._picked = next(iter(servers.values()))
        self._is_trial = self._picked.begin()
        common = messages.CommonResponse(clear_route_cache=True)
        chosen = common.header_mutation.set_headers.add()
        chosen.header.key, chosen.header.raw_value = ENDPOINT, ",".join(servers).encode()
        chosen.append_action = OVERWRITE_IF_EXISTS_OR_ADD
        kind = messages.HeadersResponse if field == "request_headers" else messages.BodyResponse
        answer = messages.ProcessingResponse(**{field: kind(response=common)})
        answer.dynamic_metadata.update({ENDPOINT_SPACE: {ENDPOINT: ",".join(servers)}})
        yield answer

    def _note_begun(self, response: Told) -> None:
        """Note that the server answers: what it had of the prompt is in its cache now."""
        status = next((each.raw_value or each.value.encode() for each in response.headers.headers
                       if each.key == ":status"), b"")  # fmt: skip
        if self._picked is not None and status == b"200":
            self._picked.prefixes.add(self._prompt.numbers)

    def _passed_on(self, response: Told) -> Answer:
        if self._response_mode != FULL_DUPLEX_STREAMED:
            return messages.ProcessingResponse(response_body=messages.BodyResponse())
        return messages.ProcessingResponse(response_body=_streamed(response.body, is_end=response.end_of_stream))


def _streamed(piece: bytes, *, is_end: bool) -> Answer:
    body = messages.BodyResponse()
    body.response.body_mutation.streamed_response.body = piece
    body.response.body_mutation.streamed_response.end_of_stream = is_end
    return body


def _refusal(status: int, code: str, message: str) -> Answer:
    body = msgspec.json.encode({"error": {"message": message, "type": "server_error", "code": code, "param": None}})
    answer = messages.ProcessingResponse()
    answer.immediate_response.status.code = status
    answer.immediate_response.body = body
    said = answer.immediate_response.headers.set_headers.add()
    said.header.key, said.header.raw_value = "content-type", b"application/json"
    return answer


def _subset_of(told: Told) -> frozenset[str] | None:
    """Return the endpoints that Envoy allows; None: all."""
    spaces = {each.key: each.value for each in told.metadata_context.filter_metadata}
    if SUBSET_SPACE not in spaces or SUBSET not in spaces[SUBSET_SPACE].fields:
        return None
    value = spaces[SUBSET_SPACE].fields[SUBSET]
    given = [each.string_value for each in value.list_value.values] or [value.string_value]
    return frozenset(each.strip() for text in given for each in text.split(",") if each.strip())
