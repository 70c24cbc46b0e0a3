# SPDX-License-Identifier: Apache-2.0
"""Byte-level BPE tokenizer of the demo models: trained so that characters outside Latin often span several tokens."""

import hashlib
import json
import unicodedata
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from corpus import training_documents
from document import ASSISTANT, BOS, END, EOS, PAD, SPECIAL_TOKENS
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

VOCAB_SIZE = 4096
NUM_TRAINING_DOCUMENTS = 40_000
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{{ eos_token if message['role'] == 'assistant' else '" + END + "' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '" + ASSISTANT + "' }}{% endif %}"
)


def _is_known(character: str) -> bool:
    """Return whether the vocabulary may learn this character: all of Latin, half of the other scripts, no emoji.

    What it does not learn it must spell in bytes, so a streaming client really has to hold bytes back.
    """
    if ord(character) < 0x250:
        return True
    if unicodedata.category(character)[0] not in "LMP":
        return False
    return hashlib.sha256(character.encode()).digest()[0] % 2 == 0


def _vocabulary_text(seed: int) -> Iterator[str]:
    for document in islice(training_documents(seed), NUM_TRAINING_DOCUMENTS):
        text = f"{document.prompt}{document.completion}"
        for token in SPECIAL_TOKENS:
            text = text.replace(token, "\n")
        yield "".join(character if _is_known(character) else "\n" for character in text)


def train_tokenizer(seed: int) -> Tokenizer:
    """Return a tokenizer of exactly `VOCAB_SIZE` tokens; `<|bos|>` is put first when special tokens are asked for."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_vocabulary_text(seed), trainer)
    num_missing = VOCAB_SIZE - tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([f"<|reserved_{number}|>" for number in range(num_missing)])
    tokenizer.post_processor = TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Write the files that `transformers.AutoTokenizer` reads."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    special = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
        **special,
    }
    for name, content in (("tokenizer_config.json", config), ("special_tokens_map.json", special)):
        (directory / name).write_text(json.dumps(content, indent=2) + "\n")
