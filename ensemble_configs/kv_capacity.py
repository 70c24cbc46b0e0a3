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
    """The longest sequence that a deployment promises."""

    max_seq_len: int  # prompt and output together, tokens
    prompt_tokens: int  # of the longest prompt; 0 where beams share no blocks
    num_beams: int

    def why_cut(self, *, num_blocks: int, block_tokens: int) -> str | None:
        """Return in words why a whole cache of so many blocks has no room for it, or None."""
        prompt_tokens = min(self.prompt_tokens, self.max_seq_len - 1)
        output_tokens, num_beams = self.max_seq_len - prompt_tokens, self.num_beams
        shortened = shortened_to(
            prompt_tokens, output_tokens, num_blocks=num_blocks, num_beams=num_beams, block_tokens=block_tokens
        )
        if shortened is None:
            return None
        beams = f" with {num_beams} beams" if num_beams > 1 else ""
        needed = blocks_of_sequence(prompt_tokens, output_tokens, num_beams=num_beams, block_tokens=block_tokens)
        return (
            f"one sequence of {self.max_seq_len} tokens{beams} takes {needed} blocks of {block_tokens} tokens, and the "
            f"KV cache has {num_blocks}; TensorRT-LLM would lower max_seq_len to {shortened} without an error"
        )
