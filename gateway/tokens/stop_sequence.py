# SPDX-License-Identifier: Apache-2.0
"""The stop string that ended an answer, where there are several: found by the answer's tokens, as the server found it.

The server says that a stop string ended the answer, and cuts the text before it. Its tokens hold the string.
"""

from clients.infer_messages import GenerateChunk
from clients.openai_api.asked import Asked, Endpoint
from serving.text.detokenization import StreamText, TextDecoder
from serving.text.stop_strings import check_stop_strings


class StopSequence:
    """The stop string that ends one answer."""

    def __init__(self, decoder: TextDecoder, stop_words: tuple[str, ...]) -> None:
        self._text = StreamText(decoder, check_stop_strings(stop_words))

    def of(self, chunk: GenerateChunk) -> str:
        """Return the string that ends the answer with this chunk; "": none does, or the server tells no tokens."""
        self._text.push(chunk.token_ids or ())
        return self._text.stopped_by if chunk.finish_reason == "stop_string" else ""


def tells_stop_sequence(asked: Asked) -> bool:
    """Return whether an answer tells which one of several stop strings ended it."""
    return asked.endpoint is Endpoint.MESSAGES and len(asked.requests[0].stop_words or ()) > 1
