# SPDX-License-Identifier: Apache-2.0
"""The token ids of a calibration set's samples, for the programs that quantize; it needs no package but tokenizers."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer


def calibration_samples(
    file: Path, tokenizer_file: Path, *, num_samples: int, max_tokens: int, seed: int
) -> Iterator[list[int]]:
    """Yield the token ids of a seeded choice of a file's lines, in the file's order.

    Args:
        file: `.jsonl` with the key `text`, or a sample a line.
        tokenizer_file: the model's `tokenizer.json`.
        num_samples: lines to choose; all of them where the file has fewer.
        max_tokens: tokens of a sample; longer samples are cut.
        seed: of the choice.
    """
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    chosen = sorted(random.Random(seed).sample(range(len(lines)), min(num_samples, len(lines))))
    for index in chosen:
        text = json.loads(lines[index])["text"] if file.suffix == ".jsonl" else lines[index]
        if token_ids := tokenizer.encode(text).ids[:max_tokens]:
            yield token_ids
