# SPDX-License-Identifier: Apache-2.0
"""The events as subscribers read them: vLLM's maps for ZeroMQ, and the same as JSON over HTTP.

A batch of vLLM is ``[seconds, events, data_parallel_rank]`` in MessagePack, an event a map with its `type`. Routers of
llm-d and Dynamo read that. Blocks are on the engine's own device, or the engine finds them as if they were: `GPU`,
which vLLM says on CPUs, too.

Source: vLLM 0.32, `vllm/distributed/kv_events.py`.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from serving.engines.seam.kv_events import AllBlocksCleared, BlocksRemoved, BlocksStored
from serving.kv_events.messages import PrefixesRemoved, PrefixesStored, ToldEvent

_RANK = 0  # an engine with several ranks that batch apart would have more
_MEDIUM = "GPU"
_encoder = msgspec.msgpack.Encoder()


def vllm_batch(at_s: float, events: Iterable[ToldEvent]) -> bytes | None:
    """Return the payload of a batch, all three parts of it; None: it has no events of blocks."""
    maps = [vllm_event(event) for event in events if not isinstance(event, PrefixesStored | PrefixesRemoved)]
    return _encoder.encode([at_s, maps, _RANK]) if maps else None


def vllm_event(event: BlocksStored | BlocksRemoved | AllBlocksCleared) -> dict[str, Any]:
    """Return an event as vLLM has it, without fields that are None and need not be there."""
    match event:
        case BlocksStored():
            return _stored(event)
        case BlocksRemoved():
            return {
                "type": "BlockRemoved",
                "block_hashes": event.block_hashes,
                "medium": _MEDIUM,
                "group_idx": event.group,
            }
    return {"type": "AllBlocksCleared"}


def json_event(event: ToldEvent, *, has_tokens: bool) -> dict[str, Any]:
    """Return an event for HTTP. Args: `has_tokens`: with the blocks' token ids."""
    match event:
        case PrefixesStored():
            return {"type": "PrefixesStored", "numbers": event.numbers, "ends": event.ends}
        case PrefixesRemoved():
            return {"type": "PrefixesRemoved", "numbers": event.numbers}
    found = vllm_event(event)
    if not has_tokens:
        found.pop("token_ids", None)
        found.pop("extra_keys", None)
    return found


def _stored(event: BlocksStored) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "BlockStored",
        "block_hashes": event.block_hashes,
        "parent_block_hash": event.parent_hash,
        "token_ids": event.token_ids,
        "block_size": event.block_tokens,
        "lora_id": None,  # deprecated there, and without a default
        "medium": _MEDIUM,
        "lora_name": event.adapter,
        "group_idx": event.group,
    }
    if event.adapter is not None or event.salt is not None:  # of each block; the salt is the first one's alone
        names = [] if event.adapter is None else [event.adapter]
        others = [names or None] * (len(event.block_hashes) - 1)
        found["extra_keys"] = [[*names, *([] if event.salt is None else [event.salt])] or None, *others]
    if event.kind is not None:
        found["kv_cache_spec_kind"] = event.kind
    return found
