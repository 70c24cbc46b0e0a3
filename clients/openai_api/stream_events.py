# SPDX-License-Identifier: Apache-2.0
"""The events of a streamed answer, as server-sent events: the bytes for each chunk, and those of the end."""

import msgspec

from clients.infer_messages import GenerateChunk
from clients.openai_api.answers import Usage, id_of, reason_of
from clients.openai_api.api_error import ApiError
from clients.openai_api.asked import Asked

_END = b"data: [DONE]\n\n"
_encode = msgspec.json.encode


class StreamEvents:
    """The events of one answer; what is the same in all of them is encoded once.

    Args:
        answer_id: name of the answer, without the prefix of its kind.
        now_s: Unix time.
        model: name of the model in the events.
    """

    def __init__(self, asked: Asked, *, answer_id: str, now_s: float, model: str) -> None:
        self._is_chat, self._n, self._includes_usage = asked.is_chat, asked.n, asked.includes_usage
        common = {
            "id": id_of(asked, answer_id),
            "object": "chat.completion.chunk" if asked.is_chat else "text_completion",
            "created": int(now_s),
            "model": model,
        }
        self._head = b"data: " + _encode(common)[:-1]
        self._tail = (b',"usage":null' if asked.includes_usage else b"") + b"}\n\n"
        self._begun = [False] * (len(asked.requests) * asked.n)
        self._num_input: dict[int, int] = {}  # by request
        self._num_output = 0

    @property
    def usage(self) -> Usage:
        """Return the tokens so far, as the server counted them."""
        num_input = sum(self._num_input.values())
        return Usage(num_input, self._num_output, num_input + self._num_output)

    def events(self, request: int, chunk: GenerateChunk) -> bytes:
        """Return the events of a chunk; none where the chunk says nothing.

        Args:
            request: index of the chunk's request among those that were asked.
        """
        if chunk.num_input_tokens is not None:
            self._num_input.setdefault(request, chunk.num_input_tokens)
        self._num_output += chunk.num_output_tokens or 0
        index = request * self._n + (chunk.sequence_index or 0)
        events = self._text(index, chunk.text) if chunk.text else b""
        if chunk.finish_reason:
            events += self._last(index, reason_of(chunk.finish_reason))
        return events

    def end(self) -> bytes:
        """Return what follows the last chunk."""
        usage = b""
        if self._includes_usage:
            usage = self._head + b',"choices":[],"usage":' + _encode(self.usage) + b"}\n\n"
        return usage + _END

    @staticmethod
    def error(error: ApiError) -> bytes:
        """Return the event with which a stream breaks off."""
        return b"data: " + _encode(error.body()) + b"\n\n"

    def _text(self, index: int, text: str) -> bytes:
        said = b'"text":' + _encode(text)
        if self._is_chat:
            role = b"" if self._begun[index] else b'"role":"assistant",'
            said = b'"delta":{' + role + b'"content":' + _encode(text) + b"}"
        self._begun[index] = True
        return self._choice(index, said, b"null")

    def _last(self, index: int, reason: str) -> bytes:
        """Return the event of a choice's end: apart from its last text, which some readers would not look for there."""
        empty = b'"text":""'
        if self._is_chat:
            empty = b'"delta":{}' if self._begun[index] else b'"delta":{"role":"assistant","content":""}'
        self._begun[index] = True
        return self._choice(index, empty, _encode(reason))

    def _choice(self, index: int, said: bytes, reason: bytes) -> bytes:
        choice = b',"choices":[{"index":%d,%b,"logprobs":null,"finish_reason":%b}]' % (index, said, reason)
        return self._head + choice + self._tail
