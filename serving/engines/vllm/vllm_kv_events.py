# SPDX-License-Identifier: Apache-2.0
"""The KV cache events of vLLM's scheduler, in the form of the seam."""

from collections.abc import Callable, Iterable, Sequence

from serving.engines.seam.kv_events import AllBlocksCleared, BlockCopies, BlocksRemoved, BlocksStored, KvEvent
from serving.engines.vllm.vllm_upstream import KvEventQueue, UpstreamKvEvent


class VllmKvEvents:
    """The events of one engine.

    vLLM tells of every copy of a block: of a prompt's last one there may be several, for it is computed anew each time.

    Args:
        told: takes the scheduler's events.
        adapter_of: returns what requests call an adapter, by its name in vLLM; None: it is none.
    """

    def __init__(self, told: KvEventQueue, adapter_of: Callable[[str], str | None]) -> None:
        self._told, self._adapter_of = told, adapter_of
        self._copies = BlockCopies()

    def take(self) -> list[KvEvent]:
        """Return the events since the last call."""
        told = self._told.take()
        return self._copies.first_and_last(self._events(told)) if told else []

    def _events(self, told: Iterable[UpstreamKvEvent]) -> Iterable[KvEvent]:
        for event in told:
            match type(event).__name__:
                case "BlockStored":
                    yield self._stored(event)
                case "BlockRemoved":
                    yield BlocksRemoved([_number(each) for each in event.block_hashes], event.group_idx or 0)
                case "AllBlocksCleared":
                    yield AllBlocksCleared()

    def _stored(self, event: UpstreamKvEvent) -> BlocksStored:
        parent, name = event.parent_block_hash, event.lora_name
        return BlocksStored(
            [_number(each) for each in event.block_hashes],
            None if parent is None else _number(parent),
            list(event.token_ids),
            event.block_size,
            None if name is None else self._adapter_of(name),
            _salt(event.extra_keys, name) if parent is None else None,
            event.group_idx or 0,
            event.kv_cache_spec_kind,
        )


def _number(block_hash: int | bytes) -> int:
    """Return a hash as a number: bytes, where vLLM is told to tell those, by their last 64 bits."""
    return block_hash if isinstance(block_hash, int) else int.from_bytes(block_hash[-8:], "big")


def _salt(extra_keys: Sequence[Sequence[object] | None] | None, lora_name: str | None) -> str | None:
    """Return the salt of a prompt's first block, whose keys are the adapter's name, those of images, and the salt."""
    keys = list((extra_keys and extra_keys[0]) or ())
    if lora_name is not None and keys and keys[0] == lora_name:
        del keys[0]
    return next((key for key in keys if isinstance(key, str)), None)
