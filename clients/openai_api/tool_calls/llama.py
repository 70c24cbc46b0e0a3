# SPDX-License-Identifier: Apache-2.0
"""Tool calls of Llama 3.1 and newer: an answer that is JSON, `{"name": ..., "parameters": {...}}`.

`<|python_tag|>` may stand before it, and `;` between several. Without the tag only the begin of an answer is looked at:
JSON further on is an example or data. Llama's Python calls, `<|python_tag|>search.call(query=...)`, stay content.

Source: the chat templates and model cards of meta-llama/Llama-3.1-8B-Instruct and Llama-3.2-3B-Instruct. The `;` is in
neither: models write it between several calls, and vLLM's parser for them reads it too.
"""

from clients.openai_api.tool_calls.call_attempt import attempt
from clients.openai_api.tool_calls.call_object import read_call_object
from clients.openai_api.tool_calls.delta_writer import DeltaWriter
from clients.openai_api.tool_calls.incoming_text import SPACE, IncomingText, Waiting

PYTHON_TAG = "<|python_tag|>"


def read_llama(incoming: IncomingText, writer: DeltaWriter) -> Waiting[None]:
    """Read an answer that begins with calls, or has the tag before them."""
    yield from incoming.run(SPACE)
    yield from incoming.literal(PYTHON_TAG)
    yield from _calls(incoming, writer)
    while (yield from incoming.until(PYTHON_TAG, writer.content)):
        yield from _calls(incoming, writer)


def _calls(incoming: IncomingText, writer: DeltaWriter) -> Waiting[None]:
    yield from incoming.run(SPACE)
    while (yield from incoming.char()) == "{":
        if not (yield from attempt(incoming, writer, read_call_object(incoming, writer))):
            return
        yield from incoming.run(SPACE)
        yield from incoming.literal(";")
        yield from incoming.run(SPACE)
        yield from incoming.literal(PYTHON_TAG)
        yield from incoming.run(SPACE)
    writer.content(incoming.settle())
