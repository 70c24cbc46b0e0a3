# SPDX-License-Identifier: Apache-2.0
"""The messages of an engine's process to the server's publisher, and the socket between them.

MessagePack in frames of ``<u32 length><bytes>``. The first message names the engine; its end is the end of what the
engine holds.
"""

import struct
from pathlib import Path

import msgspec

from serving.engines.seam.kv_events import AllBlocksCleared, BlocksRemoved, BlocksStored

LENGTH = struct.Struct("<I")
MAX_FRAME_BYTES = 1 << 28


class PrefixesStored(msgspec.Struct, frozen=True, array_like=True, tag="prefixes"):
    """The beginnings of prompts that are held from now on.

    Attributes:
        numbers: as `ensemble_configs.chat.prefix_numbers` has them.
        ends: numbers with which a whole prompt ended.
    """

    numbers: list[int]
    ends: list[int]


class PrefixesRemoved(msgspec.Struct, frozen=True, array_like=True, tag="prefixes_removed"):
    """The beginnings of prompts that are not held any more."""

    numbers: list[int]


ToldEvent = BlocksStored | BlocksRemoved | AllBlocksCleared | PrefixesStored | PrefixesRemoved


class Source(msgspec.Struct, frozen=True, tag="source"):
    """The engine that tells, and how its deployment wants it told.

    Attributes:
        engine: Triton's name of its model and its release, as `tensorrt_llm/1`.
        model: what routers call it.
        server: how routers name this server; `{host}` and `{address}` stand for this machine's.
        endpoint, replay_endpoint: of ZeroMQ; None: not over ZeroMQ.
        num_kept_batches: for subscribers that have missed some.
        tells_tokens: over HTTP, too.
    """

    engine: str
    model: str
    server: str
    endpoint: str | None
    replay_endpoint: str | None
    num_kept_batches: int
    tells_tokens: bool


class Batch(msgspec.Struct, frozen=True, tag="batch"):
    """The events of a step. Attributes: `at_s`: seconds since 1970."""

    at_s: float
    events: list[ToldEvent]


Message = Source | Batch


def publisher_path(run_dir: Path) -> Path:
    """Return the socket of the server's publisher."""
    return run_dir / "kv-events"
