# SPDX-License-Identifier: Apache-2.0
"""The joint of a stream that goes on at another server: what the caller has of it, and what is new of what follows.

The other server is given the tokens that were made, and says the whole answer with what it makes behind them. So the
text of a token that is cut in two, or that was held back for a stop string, comes out as it would have, and whether the
two parts fit is seen, not hoped for.
"""

import msgspec

from clients.infer_messages import GenerateChunk, GenerateRequest
from ensemble_configs.render.tensors import AS_MANY_AS_FIT
from trireme.base.errors import ServerError


class OtherAnswerError(ServerError):
    """An answer that is not the one which its caller has a part of."""


class StreamJoint:
    """The part of one answer that its caller has.

    Args:
        request: that streams one answer.

    Attributes:
        release: that answers, as the first server told; None: it has not.
        has_begun: whether the caller has a part of the answer.
        is_over: whether the answer has its end.
    """

    def __init__(self, request: GenerateRequest) -> None:
        # Their number is that of their ids: a tensor less in each response, which costs the server 15 us.
        self._request = msgspec.structs.replace(
            request, return_token_ids=True, return_num_output_tokens=None, return_release=True
        )
        self._texts: list[str] = []
        self._ids: list[int] = []
        self._are_ids_known = True
        self.release: int | None = None
        self.has_begun = self.is_over = False
        # Of the answer that another server says again: what has not come of it yet.
        self._known_text = ""
        self._num_known_ids = 0

    @property
    def can_go_on(self) -> bool:
        """Return whether another server can be told what was made, and has something to say behind it."""
        most = self._request.max_tokens
        return self._are_ids_known and (most == AS_MANY_AS_FIT or len(self._ids) < most)

    def begin(self) -> GenerateRequest:
        """Return the request for the answer, or for what follows of it, to a server that knows nothing of either."""
        self._known_text, self._num_known_ids = "".join(self._texts), len(self._ids)
        if not self._ids:
            return self._request
        return msgspec.structs.replace(self._request, continued_ids=tuple(self._ids))

    def of(self, chunk: GenerateChunk) -> GenerateChunk | None:
        """Return what is new in a chunk; None: nothing is.

        Raises:
            OtherAnswerError: it is of another release, or its text is not that which the caller has.
        """
        if chunk.release is not None:
            if self.release is not None and chunk.release != self.release:
                raise OtherAnswerError(f"release {chunk.release} goes on with an answer of release {self.release}")
            self.release = chunk.release
        new = self._cut(chunk) if self._known_text or self._num_known_ids else chunk
        if new.token_ids is None:
            self._are_ids_known = self._are_ids_known and not new.text
        else:
            self._ids += new.token_ids
        if new.text:
            self._texts.append(new.text)
        if not (new.text or new.token_ids or new.finish_reason or new.is_final) and self.has_begun:
            return None
        self.has_begun = True
        self.is_over = self.is_over or new.finish_reason is not None
        return new

    def _cut(self, chunk: GenerateChunk) -> GenerateChunk:
        num_chars = min(len(self._known_text), len(chunk.text))
        num_ids = min(self._num_known_ids, len(chunk.token_ids or ()))
        first = len(self._ids) - self._num_known_ids
        is_same = chunk.text[:num_chars] == self._known_text[:num_chars] and (
            chunk.token_ids is None or list(chunk.token_ids[:num_ids]) == self._ids[first : first + num_ids]
        )
        self._known_text = self._known_text[num_chars:]
        self._num_known_ids -= num_ids
        if not is_same or (chunk.finish_reason is not None and (self._known_text or self._num_known_ids)):
            raise OtherAnswerError("the answer that goes on is not the one that was begun; its caller has another text")
        return msgspec.structs.replace(
            chunk,
            text=chunk.text[num_chars:],
            token_ids=None if chunk.token_ids is None else chunk.token_ids[num_ids:],
            num_output_tokens=None if chunk.num_output_tokens is None else chunk.num_output_tokens - num_ids,
            has_moved=True,
        )
