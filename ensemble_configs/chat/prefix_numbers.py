# SPDX-License-Identifier: Apache-2.0
"""The numbers of a prompt's beginnings, by which a gateway and a server speak of the same ones.

A prompt is cut into pieces, each message by itself, and each piece's number follows from all pieces before it. So two
prompts have their first numbers in common as far as they are the same, and the next turn of a conversation begins with
all numbers of the last one. The numbers are the same in every process and on every machine.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping

import msgspec

PIECE_BYTES = 256  # of UTF-8: 64 tokens, more or less, a KV cache block of TensorRT-LLM
PROMPT_INPUTS = ("text_input", "messages", "tools", "tenant", "lora_name", "lora_task_id")
_MAX_PIECES = 4096  # of a prompt
_MESSAGES = msgspec.json.Decoder(list[msgspec.Raw])


class PromptPrefix(msgspec.Struct, frozen=True, array_like=True):
    """The numbers of a prompt's beginnings.

    Attributes:
        numbers: of each piece, 63 bits.
        ends: bytes of the prompt up to the end of each piece.
        num_bytes: of the prompt.
    """

    numbers: list[int]
    ends: list[int]
    num_bytes: int


def prompt_prefix(
    *, messages: Iterable[bytes] = (), tools: bytes = b"", text: bytes = b"", tenant: str = "", adapter: str = ""
) -> PromptPrefix:
    """Return the numbers of a prompt.

    Args:
        messages: each as JSON.
        tools: as JSON.
        text: of a prompt without messages. Nobody knows where it goes on, so it has whole pieces alone.
        tenant, adapter: whose prompts alone these are: other blocks stand for them in a KV cache.
    """
    number = hashlib.blake2b(f"{len(tenant)} {tenant}{adapter}".encode(), digest_size=8).digest()
    numbers: list[int] = []
    ends: list[int] = []
    num_bytes = 0
    for piece in _pieces(messages, tools, text):
        num_bytes += len(piece)
        if len(numbers) < _MAX_PIECES and (len(piece) == PIECE_BYTES or not text):
            number = hashlib.blake2b(number + piece, digest_size=8).digest()
            numbers.append(int.from_bytes(number, "big") >> 1)
            ends.append(num_bytes)
    return PromptPrefix(numbers, ends, num_bytes)


def prefix_of_inputs(inputs: Mapping[str, bytes]) -> PromptPrefix | None:
    """Return the numbers of a request's prompt, by the inputs of `ensemble`; None: they cannot be read.

    Args:
        inputs: values of the inputs that tell prompts apart, `PROMPT_INPUTS`, as bytes; a missing one is an empty one.
    """
    value = {name: inputs.get(name, b"") for name in PROMPT_INPUTS}
    try:
        messages = [bytes(each) for each in _MESSAGES.decode(value["messages"])] if value["messages"] else []
        return prompt_prefix(
            messages=messages,
            tools=value["tools"],
            text=b"" if messages else value["text_input"],
            tenant=value["tenant"].decode(),
            adapter=(value["lora_name"] or value["lora_task_id"]).decode(),
        )
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def named_number(kind: str, name: str) -> int:
    """Return the number of something that a prompt belongs to, such as a session."""
    return int.from_bytes(hashlib.blake2b(f"{kind} {name}".encode(), digest_size=8).digest(), "big") >> 1


def _pieces(messages: Iterable[bytes], tools: bytes, text: bytes) -> Iterator[bytes]:
    if tools:
        yield tools
    for whole in (*messages, text):
        yield from (whole[begin : begin + PIECE_BYTES] for begin in range(0, len(whole), PIECE_BYTES))
