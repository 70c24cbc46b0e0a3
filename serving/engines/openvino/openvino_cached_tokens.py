# SPDX-License-Identifier: Apache-2.0
"""The tokens of a prompt that OpenVINO's pipeline found in its KV cache, which it does not tell.

OpenVINO GenAI 2026.4 schedules by fixed rules on what it was given and what it has made, so its block tables can be
followed from outside, step by step. Whether they still are is asked after each step: the pipeline tells which part of
its blocks was in use. Once that differs, nothing is told any more, for a count that is almost right would be none.
Source: openvino.genai, scheduler.hpp, sequence_group.hpp and block_manager.hpp.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from serving.engines.openvino.openvino_block_pool import BlockPool, KvBlock


@dataclass(slots=True, eq=False)
class _Followed:
    """A request in the pipeline."""

    block_tokens: int
    token_ids: list[int]  # the prompt, and the output so far
    num_prompt_tokens: int
    num_processed: int = 0  # tokens whose keys and values are in its blocks
    num_scheduled: int = 0
    num_known: int = 0  # the most that were ever processed: what a preempted one computes again is less
    blocks: list[KvBlock] = field(default_factory=list)
    is_cancelled: bool = False
    is_waiting: bool = False  # preempted in this step
    _contents: list[int] = field(default_factory=list)  # hashes of the whole blocks, from the first on

    @property
    def is_decoding(self) -> bool:
        return self.num_known >= self.num_prompt_tokens

    @property
    def may_run(self) -> bool:
        return not (self.is_waiting or self.is_cancelled)

    @property
    def num_to_do(self) -> int:
        return max(max(self.num_prompt_tokens, self.num_known) - self.num_processed, 1)

    @property
    def num_context_tokens(self) -> int:
        return self.num_processed + self.num_scheduled

    @property
    def num_needed_blocks(self) -> int:
        return -(-self.num_context_tokens // self.block_tokens)

    def content(self, num_tokens: int) -> int:
        """Return the hash of the first `num_tokens` tokens."""
        size = self.block_tokens
        while (len(self._contents) + 1) * size <= num_tokens:
            self._contents.append(self._hash(len(self._contents), (len(self._contents) + 1) * size))
        num_whole, rest = divmod(num_tokens, size)
        return self._hash(num_whole, num_tokens) if rest else self._contents[num_whole - 1]

    def _hash(self, num_whole: int, end: int) -> int:
        before = self._contents[num_whole - 1] if num_whole else None
        return hash((before, *self.token_ids[num_whole * self.block_tokens : end]))


class CachedTokens:
    """The block tables of one pipeline, followed.

    Args:
        num_blocks: KV blocks of the pipeline.
        block_tokens: tokens of a block.
        max_num_batched_tokens: tokens of a step.
    """

    def __init__(self, *, num_blocks: int, block_tokens: int, max_num_batched_tokens: int) -> None:
        self._pool = BlockPool(num_blocks)
        self._block_tokens = block_tokens
        self._max_num_batched_tokens = max_num_batched_tokens
        self._requests: dict[int, _Followed] = {}  # in the order in which they came
        self.why_lost = ""

    @property
    def is_followed(self) -> bool:
        """Return whether the block tables are known; once they are not, nothing is told any more."""
        return not self.why_lost

    def follow_warm_up(self, token_ids: Sequence[int]) -> None:
        """Follow a prompt that the pipeline was given alone, for one token, before anything else."""
        self.add(0, token_ids)
        num_blocks = -(-len(token_ids) // self._block_tokens)
        while self._requests and self.is_followed:
            [request] = self._requests.values()
            is_last = request.num_to_do <= self._max_num_batched_tokens
            self.step({}, (0,) if is_last else (), num_used_blocks=num_blocks)

    def lose(self, why: str) -> None:
        """Tell nothing from now on."""
        self.why_lost = why
        self._requests.clear()

    def add(self, key: int, token_ids: Sequence[int]) -> int | None:
        """Return how many tokens of a new prompt are in the cache; None: the number is not known.

        At most all but the last, whose logits are needed.
        """
        if not self.is_followed:
            return None
        request = _Followed(self._block_tokens, list(token_ids), len(token_ids))
        self._restore(request)
        request.num_known = request.num_processed
        self._requests[key] = request
        return request.num_processed

    def cancel(self, key: int) -> None:
        """Note that a request is computed no more; the next step frees its blocks."""
        if key in self._requests:
            self._requests[key].is_cancelled = True

    def step(self, made: Mapping[int, Sequence[int]], ended: Collection[int], *, num_used_blocks: int) -> None:
        """Follow one step of the pipeline.

        Args:
            made: the tokens that it made, by key; those of a request that ended may be left out.
            ended: the keys of requests that it ended.
            num_used_blocks: of the pipeline in that step, before it freed what ended.
        """
        if not self.is_followed:
            return
        num_scheduled = self._schedule()
        if self._pool.num_used != num_used_blocks:
            self.lose(f"the pipeline used {num_used_blocks} blocks, and not {self._pool.num_used}")
            return
        for key, request in list(self._requests.items()):
            request.num_processed += request.num_scheduled
            request.num_known = max(request.num_known, request.num_processed)
            request.num_scheduled = 0
            request.is_waiting = False
            request.token_ids += made.get(key, ())
            if key in ended or request.is_cancelled or not num_scheduled:
                del self._requests[key]
                self._free(request)

    def _restore(self, request: _Followed) -> None:
        """Give a request the blocks that hold its beginning: whole ones, and at the end a partly filled one."""
        num_tokens, size = request.num_prompt_tokens, self._block_tokens
        for start in range(0, num_tokens, size):
            end = min(start + size, num_tokens)
            for length in (end, *range(start + 1, min(start + size, num_tokens + 1))):
                block = self._pool.find(request.content(length))
                if block is not None:
                    request.blocks.append(block)
                    request.num_processed = min(length, num_tokens - 1)
                    break
            if block is None or length != end:
                return

    def _schedule(self) -> int:
        """Return how many tokens the step computes: first those of requests that decode, then those of prompts."""
        for request in self._requests.values():
            # A block that was found for the last token alone, which is computed again into another one.
            while len(request.blocks) > request.num_needed_blocks:
                self._pool.release(request.blocks.pop())
        left = self._max_num_batched_tokens
        for is_decoding in (True, False):
            for request in list(self._requests.values()):
                if left and request.may_run and request.is_decoding is is_decoding:
                    plan = self._plan_decoding if is_decoding else self._plan_prefill
                    left -= plan(request, min(left, request.num_to_do))
        return self._max_num_batched_tokens - left

    def _plan_decoding(self, request: _Followed, num_tokens: int) -> int:
        request.num_scheduled = num_tokens
        while (num_missing := self._num_missing_blocks(request)) > self._pool.num_free:
            if not self._preempt_for(request):
                request.num_scheduled = 0
                return 0
        last = request.blocks[-1] if request.blocks else None
        if last is None or request.num_needed_blocks > len(request.blocks):
            self._grow(request, request.num_needed_blocks - len(request.blocks), num_tokens=len(request.token_ids))
        elif num_missing:  # a shared block, about to be written: it becomes a copy of its own
            request.blocks[-1] = self._pool.take(request.content(request.num_context_tokens))
            self._pool.release(last)
        else:
            self._pool.rename(last, request.content(request.num_context_tokens))
        return num_tokens

    def _plan_prefill(self, request: _Followed, num_tokens: int) -> int:
        num_unused = -request.num_processed % self._block_tokens
        num_tokens = min(num_tokens, num_unused + self._pool.num_free * self._block_tokens)
        num_new = -(-max(0, num_tokens - num_unused) // self._block_tokens)
        if num_new:
            self._grow(request, num_new, num_tokens=request.num_prompt_tokens)
        request.num_scheduled = num_tokens
        return num_tokens

    def _grow(self, request: _Followed, num_new: int, *, num_tokens: int) -> None:
        """Add blocks to a request, known by what they will hold when they are full, or all of its `num_tokens` are."""
        size = self._block_tokens
        if request.blocks and request.blocks[-1].content != (full := request.content(len(request.blocks) * size)):
            self._pool.rename(request.blocks[-1], full)
        for _ in range(num_new):
            end = min((len(request.blocks) + 1) * size, num_tokens)
            request.blocks.append(self._pool.take(request.content(end)))

    def _num_missing_blocks(self, request: _Followed) -> int:
        num_needed = request.num_needed_blocks
        if not request.blocks:
            return num_needed
        num_missing = num_needed - len(request.blocks)
        if num_missing < 0:
            return 0
        num_users = request.blocks[-1].num_users
        if num_users == 1:
            return num_missing
        return num_missing * num_users if num_missing else num_users - 1

    def _preempt_for(self, request: _Followed) -> bool:
        """Take blocks from the youngest request that has some.

        Return False if that request gave none, or no younger one has some.
        """
        victim = next((one for one in reversed(self._requests.values()) if one.num_processed), request)
        if not self._is_younger(victim, request):
            return False
        num_free, num_needed = self._pool.num_free, self._num_missing_blocks(request)
        if len(victim.blocks) > num_needed:
            rest = victim.num_processed % self._block_tokens or self._block_tokens
            victim.num_processed -= rest + (num_needed - 1) * self._block_tokens
            for _ in range(num_needed):  # the last first
                self._pool.release(victim.blocks.pop())
        else:
            victim.num_processed = 0
            self._free(victim)
        victim.is_waiting = True
        return self._pool.num_free > num_free

    def _is_younger(self, one: _Followed, other: _Followed) -> bool:
        first = next(request for request in self._requests.values() if request in (one, other))
        return one is not other and first is other

    def _free(self, request: _Followed) -> None:
        for block in request.blocks:
            self._pool.release(block)
        request.blocks.clear()
