# SPDX-License-Identifier: Apache-2.0
"""Training batches of packed documents: token ids, targets with weights, positions and attention masks."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from document import BOS, EOS, PAD, Document
from tokenizers import Tokenizer
from torch import Tensor

# A prompt's tokens are trained on a little, so that half a question is continued sensibly too; most
# of them (the operands of a sum, say) nobody could predict.
PROMPT_WEIGHT = 0.1
COMPLETION_WEIGHT = {"sum": 2.0}
# In this share of the batches a document also sees the ones before it, as a long prompt would show them.
OPEN_FRACTION = 0.25
NUM_LOOKAHEAD = 16


@dataclass(frozen=True)
class Batch:
    """A training batch.

    `input_ids`, `targets`, `positions`: [batch, context] int64; `weights`: [batch, context] float32;
    `mask`: [batch, 1, context, context] bool, true where a query (dim 2) may attend to a key (dim 3).
    """

    input_ids: Tensor
    targets: Tensor
    weights: Tensor
    positions: Tensor
    mask: Tensor


@dataclass(frozen=True)
class Encoded:
    """Token ids from `<|bos|>` to `<|eos|>`, and the loss weight of each (none for `<|bos|>`)."""

    ids: list[int]
    weights: list[float]


def encode_document(document: Document, tokenizer: Tokenizer) -> Encoded:
    """Encode prompt and completion apart, as a server that knows only the prompt does."""
    prompt = tokenizer.encode(document.prompt, add_special_tokens=False).ids
    completion = tokenizer.encode(document.completion, add_special_tokens=False).ids
    weight = COMPLETION_WEIGHT.get(document.kind, 1.0)
    return Encoded(
        ids=[tokenizer.token_to_id(BOS), *prompt, *completion, tokenizer.token_to_id(EOS)],
        weights=[0.0, *[PROMPT_WEIGHT] * len(prompt), *[weight] * (len(completion) + 1)],
    )


def _fill_rows(documents: Iterator[Encoded], context: int) -> Iterator[list[Encoded]]:
    """Yield rows of whole documents that fit into `context` tokens; one that does not fit waits for the next row."""
    waiting: list[Encoded] = []
    while True:
        row: list[Encoded] = []
        free, num_refused = context, 0
        candidates = waiting
        waiting = []
        while num_refused < NUM_LOOKAHEAD:
            document = candidates.pop(0) if candidates else next(documents)
            if len(document.ids) <= free:
                row.append(document)
                free -= len(document.ids)
            elif len(document.ids) <= context:
                waiting.append(document)
                num_refused += 1
        waiting += candidates
        yield row


def packed_batches(
    documents: Iterator[Document], tokenizer: Tokenizer, *, batch_size: int, context: int
) -> Iterator[Batch]:
    """Yield batches of `batch_size` rows of `context` tokens without end."""
    pad = tokenizer.token_to_id(PAD)
    rows = _fill_rows((encode_document(document, tokenizer) for document in documents), context + 1)
    causal = torch.ones(context, context, dtype=torch.bool).tril()
    num_batches = 0
    while True:
        num_batches += 1
        is_open = num_batches % round(1 / OPEN_FRACTION) == 0
        ids = torch.full((batch_size, context + 1), pad)
        weights = torch.zeros(batch_size, context + 1)
        positions = torch.arange(context).repeat(batch_size, 1)
        owner = torch.zeros(batch_size, context + 1, dtype=torch.int64)
        for index in range(batch_size):
            start = 0
            for number, document in enumerate(next(rows)):
                end = start + len(document.ids)
                ids[index, start:end] = torch.tensor(document.ids)
                weights[index, start:end] = torch.tensor(document.weights)
                owner[index, start:] = number
                if not is_open:
                    positions[index, start:] = torch.arange(context - start) if start < context else 0
                start = end
        same = owner[:, :-1, None] == owner[:, None, :-1]
        mask = causal.expand(batch_size, -1, -1) if is_open else causal & same
        yield Batch(ids[:, :-1], ids[:, 1:], weights[:, 1:], positions, mask[:, None])
