# SPDX-License-Identifier: Apache-2.0
"""Room for one whole sequence in a KV cache, by the rules with which TensorRT-LLM shortens what has none.

Where the cache cannot hold one sequence of `max_seq_len` tokens, with all its beams, upstream lowers `max_seq_len` with
a warning and goes on; requests that the deployment promises then fail one by one. `docs/trtllm_behaviour.md`, E2.
"""

from typing import NamedTuple


def blocks_of_sequence(prompt_tokens: int, output_tokens: int, *, num_beams: int, block_tokens: int) -> int:
    """Return the KV blocks of one sequence: beams share whole blocks of the prompt and nothing else.

    Source: `KVCacheManager::calculateMaxBlockRequirements`, cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp, without
    a sliding window.
    """
    if num_beams == 1:
        return -(-(prompt_tokens + output_tokens) // block_tokens)
    shared_blocks, rest = divmod(prompt_tokens, block_tokens)
    return shared_blocks + num_beams * -(-(rest + output_tokens) // block_tokens)


def shortened_to(
    prompt_tokens: int, output_tokens: int, *, num_blocks: int, num_beams: int, block_tokens: int
) -> int | None:
    """Return the `max_seq_len` that upstream lowers to, or None where one sequence fits.

    Source: `clampWindowSizesToFitAtLeastOneSequence` in trtGptModelInflightBatching.cpp, and
    `KVCacheManager::calculateMaxAttentionWindow`. The PyTorch backend's `_validate_and_adjust_attention_windows` shares
    nothing between beams: give it all tokens as output.
    """
    sizes = {"num_beams": num_beams, "block_tokens": block_tokens}
    if blocks_of_sequence(prompt_tokens, output_tokens, **sizes) <= num_blocks:
        return None
    free_blocks = num_blocks - blocks_of_sequence(0, output_tokens, **sizes)
    if free_blocks < 0:
        return num_blocks // num_beams * block_tokens
    return min(output_tokens + free_blocks * block_tokens, prompt_tokens + output_tokens)


class WholeSequence(NamedTuple):
    """The longest sequence that a deployment promises, and the sizes by which upstream looks for its room."""

    max_seq_len: int  # prompt and output together, tokens
    prompt_tokens: int  # of the longest prompt; 0 where all tokens are counted as output
    num_beams: int  # of its requests
    built_seq_len: int | None = None  # a compiled engine goes by its own limits, whatever the deployment asks
    built_beams: int = 1  # beside `built_seq_len`
    is_block_spared: bool = False  # of each beam, where upstream shortens: its PyTorch backend

    def cut_to(self, *, num_blocks: int, block_tokens: int) -> int | None:
        """Return the `max_seq_len` that upstream lowers to where that is less than what is promised, or None.

        Source of `is_block_spared`: `get_max_atten_window_upper_bound` of _torch/pyexecutor/resource_manager.py.
        """
        shortened = shortened_to(
            *self._lengths, num_blocks=num_blocks, num_beams=self._beams, block_tokens=block_tokens
        )
        if shortened is None:
            return None
        if self.is_block_spared and self._beams > 1:
            shortened = max(0, shortened - block_tokens)
        return shortened if shortened < self.max_seq_len else None

    def longest(self, *, num_blocks: int, block_tokens: int) -> int:
        """Return the tokens that any request may have in a whole cache of `num_blocks` blocks.

        Beyond what upstream lowers to: a beam search with a short prompt shares nothing, and a search that does not fit
        the cache with each beam in blocks of its own would wait for ever, and those behind it too.
        """
        room = num_blocks // self.num_beams * block_tokens
        cut = self.cut_to(num_blocks=num_blocks, block_tokens=block_tokens)
        return min(self.max_seq_len, room, room if cut is None else cut)

    def why_cut(self, *, num_blocks: int, block_tokens: int) -> str | None:
        """Return in words why a whole cache of `num_blocks` blocks has no room for the sequence, or None."""
        shortened = self.cut_to(num_blocks=num_blocks, block_tokens=block_tokens)
        if shortened is None:
            return None
        beams = f" with {self._beams} beams" if self._beams > 1 else ""
        is_built_for_more = self.built_seq_len is not None and self.built_seq_len > self.max_seq_len
        built = ", for which the engine was built," if is_built_for_more or self._beams > self.num_beams else ""
        needed = blocks_of_sequence(*self._lengths, num_beams=self._beams, block_tokens=block_tokens)
        return (
            f"one sequence of {sum(self._lengths)} tokens{beams}{built} takes {needed} blocks of {block_tokens} "
            f"tokens, and the KV cache has {num_blocks}; TensorRT-LLM would lower max_seq_len to {shortened} without "
            "an error"
        )

    @property
    def _beams(self) -> int:
        return self.num_beams if self.built_seq_len is None else self.built_beams

    @property
    def _lengths(self) -> tuple[int, int]:
        """Return prompt and output length, in tokens, of the sequence that upstream looks at."""
        seq_len = self.max_seq_len if self.built_seq_len is None else self.built_seq_len
        prompt_tokens = min(self.prompt_tokens, seq_len - 1)
        return prompt_tokens, seq_len - prompt_tokens
