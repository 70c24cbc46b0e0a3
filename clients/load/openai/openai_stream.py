# SPDX-License-Identifier: Apache-2.0
"""The requests to `/completions` of an OpenAI-compatible server and the events of its answers, without a connection.

The built-in client and Locust's users read their streams by it.
"""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec

from clients.access import Access, is_grpc_url, with_scheme
from clients.infer_messages import GenerateChunk, GenerateRequest
from clients.load.openai.openai_errors import API_KEY_VARIABLE, api_key, shown, stream_error
from trireme.base.errors import RequestError, ServerError, Unavailable
from trireme.base.known_types import known

OK = 200
# Of a GenerateRequest. What is in neither has no name there.
_CARRIED = {"text_input", "max_tokens", "min_tokens", "end_id", "temperature", "top_p"}
_NEEDLESS = {
    "stream", "exclude_input_in_output", "return_num_input_tokens", "return_num_output_tokens", "return_finish_reason",
}  # fmt: skip


def is_openai_url(url: str) -> bool:
    """Return whether an address is an OpenAI-compatible server's, and not host:port of Triton's gRPC endpoint."""
    return not is_grpc_url(url)


def completions_url(url: str) -> str:
    """Return the address of `/completions`.

    Raises:
        RequestError: it is not like ``http://localhost:8000/v1``.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise RequestError(
            f"url of an OpenAI-compatible server must be like http://localhost:8000/v1, got {url!r}",
            field="url",
        )
    if parts.username is not None:
        raise RequestError("url must hold no key or password: put it in OPENAI_API_KEY", field="url")
    return f"{url.rstrip('/')}/completions"


def with_api_key(url: str, access: Access) -> Access:
    """Return how to connect to the server at an address; where no key is named, that of OPENAI_API_KEY is sent.

    Raises:
        RequestError: the address is one without TLS, and `access` wants it.
    """
    access = with_scheme(url, access)
    if access.has_token or api_key() is None:
        return access
    return msgspec.structs.replace(access, token_env=API_KEY_VARIABLE)


def headers(access: Access) -> dict[str, str]:
    """Return the headers of a request, with the key as it is now.

    Raises:
        SpecError: the key cannot be read.
    """
    return {"Content-Type": "application/json", **dict(access.headers())}


def refuse_unknown(request: GenerateRequest) -> None:
    """Raise a RequestError where a request has something that OpenAI's API has no name for."""
    for name in request.__struct_fields__:
        if name not in _CARRIED and name not in _NEEDLESS and getattr(request, name) is not None:
            raise RequestError(
                f"{name} is none of OpenAI's parameters; leave it out of the workload, or ask Triton's gRPC endpoint",
                field=name,
            )


def completion_body(request: GenerateRequest, *, model: str, counts_each: bool) -> bytes:
    """Return a request as JSON.

    Args:
        counts_each: ask for the tokens of every chunk, as vLLM and Dynamo tell them; others may refuse to.

    Raises:
        RequestError: the request has something that OpenAI's API has no name for.
    """
    refuse_unknown(request)
    body: dict[str, Any] = {
        "model": model,
        "prompt": request.text_input,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature or 0.0,
        "stream": True,
        "stream_options": {"include_usage": True, **({"continuous_usage_stats": True} if counts_each else {})},
    }
    if request.top_p is not None:
        body["top_p"] = request.top_p
    # vLLM's names, which others took over; OpenAI has none.
    if request.min_tokens is not None:
        body["min_tokens"] = request.min_tokens
    if request.end_id is not None:
        if request.end_id >= 0:
            raise RequestError("end_id has no name in OpenAI's API, but for -1: never end", field="end_id")
        body["ignore_eos"] = True
    return msgspec.json.encode(body)


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: str = ""


_EVENT = msgspec.json.Decoder(known(_Event))


class CompletionStream:
    """The events of one answer as chunks.

    A chunk has the tokens by which its event's count is above that of the one before; where events do not count, it has
    one, or none without text, and the last one with text has in addition what the count at the end says is missing. So
    a chunk is held back until the next one; its time stays that of its arrival.

    Attributes:
        is_done: the server said that this is all.
        has_begun: some bytes of it have come.
    """

    def __init__(self) -> None:
        self.is_done = False
        self.has_begun = False
        self._rest = b""
        self._held: list[GenerateChunk] = []  # the first one has tokens, or none has
        self._num_tokens = 0  # of all chunks, held ones included
        self._is_error = False  # the lines to come are an error's
        self._comment = b""

    def feed(self, data: bytes, at_ns: int) -> Iterator[GenerateChunk]:
        """Yield the chunks that are known after more bytes of the body, which came at `at_ns`.

        Raises:
            ServingError: an event is an error, or is none that can be read.
        """
        self.has_begun = True
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            name, _, value = line.strip().partition(b":")
            value = value.strip()
            match name:
                case b"data" if value == b"[DONE]":
                    self.is_done = True
                    yield from self.release()
                case b"data":
                    yield from self._read(value, at_ns)
                case b"event":
                    self._is_error = value == b"error"
                case b"error":  # llama.cpp, before 2025
                    raise stream_error(value)
                case b"" if value:
                    self._comment = value
                case b"" if self._is_error:  # Dynamo has the message in a comment
                    raise stream_error(self._comment)

    def release(self) -> list[GenerateChunk]:
        """Return the chunks that are still held back, once no more can come."""
        held, self._held = self._held, []
        return held

    def check_end(self) -> None:
        """Raise Unavailable where the body ended before the server said that this is all."""
        if not self.is_done:
            raise Unavailable("the stream ended before [DONE]", reason="connection_lost")

    def _read(self, data: bytes, at_ns: int) -> Iterator[GenerateChunk]:
        try:
            event = _EVENT.decode(data)
        except msgspec.MsgspecError as exc:
            if self._is_error:
                raise stream_error(data) from exc
            raise ServerError(f"the server sent an event that is none of /completions: {shown(data)}") from exc
        if event.error is not None or event.object == "error" or self._is_error:
            raise stream_error(data)
        total = event.usage.completion_tokens if event.usage else None
        if event.choices:
            text = "".join(choice.text or "" for choice in event.choices)
            counted = None if total is None else max(0, total - self._num_tokens)
            chunk = GenerateChunk(
                text=text,
                finish_reason=next((choice.finish_reason for choice in event.choices if choice.finish_reason), None),
                num_input_tokens=event.usage.prompt_tokens if event.usage else None,
                num_output_tokens=int(bool(text)) if counted is None else counted,
                is_final=False,
                received_ns=at_ns,
            )
            self._num_tokens += chunk.num_output_tokens or 0
            if chunk.num_output_tokens or not (self._held and self._held[0].num_output_tokens):
                yield from self.release()
            self._held.append(chunk)
        elif event.usage is not None:
            self._correct(event.usage, at_ns)

    def _correct(self, usage: _Usage, at_ns: int) -> None:
        """Correct the last chunk with text by the count at the end."""
        total = self._num_tokens if usage.completion_tokens is None else usage.completion_tokens
        if not self._held:  # an answer of nothing
            self._held.append(
                GenerateChunk(
                    text="", finish_reason=None, num_input_tokens=None, num_output_tokens=0, is_final=False,
                    received_ns=at_ns,
                )
            )  # fmt: skip
        last = self._held[0]
        tokens = max(0, (last.num_output_tokens or 0) + total - self._num_tokens)
        self._num_tokens += tokens - (last.num_output_tokens or 0)
        self._held[0] = msgspec.structs.replace(last, num_output_tokens=tokens, num_input_tokens=usage.prompt_tokens)
