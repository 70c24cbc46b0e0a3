# SPDX-License-Identifier: Apache-2.0
"""The pieces that an answer's text becomes, and the interface of what makes them."""

from typing import Protocol

import msgspec


class Content(msgspec.Struct, frozen=True):
    """A piece of the answer's `content`."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """A piece of the answer's `reasoning_content`."""

    text: str


class CallBegun(msgspec.Struct, frozen=True):
    """The begin of a tool call; its arguments follow."""

    index: int  # from 0 in an answer
    id: str
    name: str


class Arguments(msgspec.Struct, frozen=True):
    """A piece of a call's `arguments`, as the model wrote them."""

    index: int  # of the call
    text: str


Delta = Content | Reasoning | CallBegun | Arguments


class DeltaReader(Protocol):
    """A reader of one answer; a whole answer is one `read` and `end`.

    The deltas, joined, do not depend on how the text is cut into pieces.
    """

    def read(self, text: str) -> list[Delta]:
        """Return what is certain with the next piece of the text."""
        ...

    def end(self) -> list[Delta]:
        """Return what was held back; nothing may be read after it."""
        ...
