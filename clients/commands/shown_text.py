# SPDX-License-Identifier: Apache-2.0
"""Answers on the terminal: read as they are made, and written exactly."""

import sys
from collections.abc import Callable, Generator, Iterator

import msgspec

from clients.infer_messages import GenerateChunk, GenerateRequest
from trireme.base.errors import RequestError


def streamed_or_whole(
    ask: Callable[[GenerateRequest], Iterator[GenerateChunk]], request: GenerateRequest
) -> Generator[GenerateChunk, None, None]:
    """Yield the answer as it is made; at once at its end from a unary deployment, which refuses a stream by name."""
    try:
        yield from ask(request)
    except RequestError as exc:
        if exc.facts.get("field") != "stream":
            raise
        yield from ask(msgspec.structs.replace(request, stream=False))


def write(text: str) -> None:
    """Write a text on standard output as bytes: it must come out exact whatever the terminal's encoding."""
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()
