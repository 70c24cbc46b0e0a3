# SPDX-License-Identifier: Apache-2.0
"""The room for one sequence in a KV cache is what upstream's loader makes of it."""

import json
import random
from pathlib import Path

import pytest
from trtllm_loader import RuntimeOptions, load, window_upper_bound

from ensemble_configs.releases.kv_capacity import WholeSequence, blocks_of_sequence, shortened_to


def test_a_sequence_takes_whole_blocks_and_a_beam_shares_those_of_the_prompt() -> None:
    # 100 prompt tokens in blocks of 32: 3 shared, 4 tokens over; with 28 of the answer they fill a block of each beam.
    assert blocks_of_sequence(100, 28, num_beams=1, block_tokens=32) == 4
    assert blocks_of_sequence(100, 28, num_beams=4, block_tokens=32) == 3 + 4
    assert blocks_of_sequence(100, 29, num_beams=4, block_tokens=32) == 3 + 2 * 4
    assert blocks_of_sequence(0, 128, num_beams=4, block_tokens=32) == 4 * 4  # nothing shared


def test_a_cut_is_told_with_what_upstream_would_lower_to() -> None:
    whole = WholeSequence(max_seq_len=2048, prompt_tokens=0, num_beams=4)
    assert whole.why_cut(num_blocks=256, block_tokens=32) is None
    why = whole.why_cut(num_blocks=255, block_tokens=32)
    assert why is not None
    assert "takes 256 blocks of 32 tokens, and the KV cache has 255" in why
    assert "lower max_seq_len to 2016" in why  # 63 blocks for each beam


def test_a_compiled_engine_is_measured_by_what_it_was_built_for() -> None:
    asked = WholeSequence(max_seq_len=256, prompt_tokens=255, num_beams=1)
    assert asked.cut_to(num_blocks=8, block_tokens=32) is None
    built = asked._replace(prompt_tokens=2047, built_seq_len=2048, built_beams=3)
    assert built.cut_to(num_blocks=8, block_tokens=32) == 1 + 5 * 32  # three of the blocks are for a token of each beam
    why = built.why_cut(num_blocks=8, block_tokens=32)
    assert why is not None
    assert "one sequence of 2048 tokens with 3 beams, for which the engine was built, takes 66 blocks" in why
    assert built.cut_to(num_blocks=11, block_tokens=32) is None, "257 tokens, more than are asked"


def test_where_the_pytorch_backend_shortens_a_search_it_takes_a_block_off_each_beam() -> None:
    whole = WholeSequence(max_seq_len=1024, prompt_tokens=0, num_beams=4, is_block_spared=True)
    assert whole.longest(num_blocks=128, block_tokens=32) == 1024
    assert whole.cut_to(num_blocks=64, block_tokens=32) == 16 * 32 - 32
    alone = whole._replace(num_beams=1)
    assert alone.longest(num_blocks=31, block_tokens=32) == 31 * 32
    random_sizes = random.Random(7)
    for _ in range(200):
        beams, blocks = random_sizes.randint(1, 6), random_sizes.randint(12, 200)
        left = window_upper_bound(1024, num_beams=beams, block_tokens=32, num_blocks=blocks)
        assert whole._replace(num_beams=beams).longest(num_blocks=blocks, block_tokens=32) == left


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """Return an engine folder; its limits are put in later."""
    (tmp_path / "rank0.engine").touch()
    return tmp_path


def test_the_length_is_the_loaders_for_any_sizes(engine: Path) -> None:
    chance = random.Random(7)
    num_cut = 0
    for _ in range(500):
        max_seq_len, block_tokens = chance.randint(2, 9000), chance.choice((16, 32, 64, 128))
        max_num_tokens, beams = chance.randint(1, 9000), chance.randint(1, 8)
        num_blocks, is_chunked = chance.randint(1, 2 * max_seq_len // block_tokens + 2), chance.random() < 0.5
        plugins = {
            "gpt_attention_plugin": "auto", "remove_input_padding": True, "paged_kv_cache": True, "lora_plugin": None,
            "use_paged_context_fmha": True, "tokens_per_block": block_tokens,
        }  # fmt: skip
        build = {
            "max_seq_len": max_seq_len, "max_num_tokens": max_num_tokens, "max_batch_size": 8, "max_beam_width": beams,
            "speculative_decoding_mode": 1, "gather_context_logits": False, "plugin_config": plugins,
        }  # fmt: skip
        quantization = {"quant_algo": None, "kv_cache_quant_algo": None}
        pretrained = {"mapping": {"world_size": 1}, "quantization": quantization}
        config = {"version": "1.2.1", "pretrained_config": pretrained, "build_config": build}
        (engine / "config.json").write_text(json.dumps(config))
        loaded = load(engine, RuntimeOptions(enable_chunked_prefill=is_chunked, num_kv_blocks=num_blocks))
        prompt = max_seq_len - 1 if is_chunked else min(max_seq_len - 1, max_num_tokens)
        shortened = shortened_to(
            prompt, max_seq_len - prompt, num_blocks=num_blocks, num_beams=beams, block_tokens=block_tokens
        )
        assert loaded.max_seq_len == (max_seq_len if shortened is None else shortened)
        num_cut += shortened is not None
    assert 100 < num_cut < 400
