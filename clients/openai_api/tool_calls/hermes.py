# SPDX-License-Identifier: Apache-2.0
"""Tool calls of Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, once for each call.

Source: the chat templates of NousResearch/Hermes-2-Pro, Qwen/Qwen2.5-7B-Instruct and Qwen/Qwen3-8B, which ask for this
form and write the calls of earlier messages in it.
"""

from clients.openai_api.tool_calls.call_attempt import attempt, expect
from clients.openai_api.tool_calls.call_object import read_call_object
from clients.openai_api.tool_calls.delta_writer import DeltaWriter
from clients.openai_api.tool_calls.incoming_text import SPACE, IncomingText, Waiting

BEGIN, END = "<tool_call>", "</tool_call>"


def read_hermes(incoming: IncomingText, writer: DeltaWriter) -> Waiting[None]:
    """Read an answer; text may stand before, between and after the calls."""
    while (yield from incoming.until(BEGIN, writer.content)):
        yield from attempt(incoming, writer, _call(incoming, writer))


def _call(incoming: IncomingText, writer: DeltaWriter) -> Waiting[None]:
    yield from incoming.run(SPACE)
    yield from read_call_object(incoming, writer)
    yield from incoming.run(SPACE)
    yield from expect(incoming, END)
