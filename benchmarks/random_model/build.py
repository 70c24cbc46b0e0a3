# SPDX-License-Identifier: Apache-2.0
"""A model of about 125M parameters with random weights: the size at which an engine's own work dominates.

For speed only, it knows nothing. Runs in .tools/build-cpu (`make bench-model`) and writes a checkpoint with its
tokenizer, and the int8 IR beside it, to build/random_125m.
"""

import argparse
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = Path(__file__).parents[2]
EXPORT = ROOT / "examples" / "demo_model" / "export.py"
BOS, EOS = "<s>", "</s>"
VOCAB_SIZE = 32_000
_SYLLABLES = [c + v + e for c in "bcdfghklmnprstvw" for v in "aeiou" for e in ("", "n", "r", "s", "l", "st", "ck")]


def random_words(seed: int, *, num_words: int = 60_000, num_texts: int = 40_000) -> Iterator[str]:
    """Yield texts of invented words, some of them frequent: enough for a full vocabulary."""
    rng = random.Random(seed)
    words = ["".join(rng.choices(_SYLLABLES, k=rng.randint(1, 4))) for _ in range(num_words)]
    weights = [1 / rank for rank in range(20, num_words + 20)]
    for _ in range(num_texts):
        yield " ".join(rng.choices(words, weights, k=20))


def train_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE of exactly `VOCAB_SIZE` tokens."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(random_words(seed), trainer)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE, tokenizer.get_vocab_size()
    tokenizer.post_processor = TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS)


def random_model(seed: int) -> LlamaForCausalLM:
    """Return a model of the Llama architecture: 12 layers of 768, embeddings shared with the output.

    Dimensions are multiples of 128.
    """
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=768,
        intermediate_size=2560,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=12,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        dtype="bfloat16",
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


def main() -> None:
    """Build the model; a minute and a half, 400 MB."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "random_125m")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    checkpoint = args.output / "target"
    print("training the tokenizer", flush=True)
    train_tokenizer(args.seed).save_pretrained(checkpoint)
    print("making the weights", flush=True)
    model = random_model(args.seed)
    model.save_pretrained(checkpoint)
    print(f"{model.num_parameters() / 1e6:.1f}M parameters in {checkpoint}", flush=True)
    export = [
        sys.executable,
        EXPORT,
        "--model",
        "target",
        "--checkpoints",
        args.output,
        "--output",
        args.output / "openvino",
    ]
    subprocess.run([str(part) for part in export], check=True)


if __name__ == "__main__":
    main()
