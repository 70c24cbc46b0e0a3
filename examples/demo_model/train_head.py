# SPDX-License-Identifier: Apache-2.0
"""The training of an EAGLE-3 head for the trained target, on the CPU; a few minutes."""

import argparse
import time
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from corpus import training_documents
from eagle_head import LAYERS, EagleHead
from packing import Batch, encode_document, packed_batches
from tokenizers import Tokenizer
from torch import Tensor
from train import HERE, add_options, learning_rate
from transformers import LlamaForCausalLM

PEAK_LEARNING_RATE = 2e-3
NUM_STEPS = 3  # drafts in a row that it is trained for
STEP_WEIGHT = 0.8  # of each further one in the loss
NUM_COUNTED = 40_000  # documents by which the tokens that it drafts are chosen


@dataclass(frozen=True)
class Known:
    """The target's view of a batch, at all places but the last.

    `hidden_states`: [batch, tokens, width of the layers together]; `logits`: [batch, tokens, vocabulary] of the token
    after the next one.
    """

    hidden_states: Tensor
    logits: Tensor


def usual_tokens(tokenizer: Tokenizer, seed: int, count: int) -> Tensor:
    """Return the most frequent tokens of the corpus, ascending."""
    counts: Counter[int] = Counter()
    for document in islice(training_documents(seed), NUM_COUNTED):
        counts.update(encode_document(document, tokenizer).ids)
    return torch.tensor(sorted(token for token, _ in counts.most_common(count)))


def ask_target(target: LlamaForCausalLM, batch: Batch) -> Known:
    """Return what the target computes for a batch."""
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        output = target(
            input_ids=batch.input_ids,
            attention_mask=batch.mask,
            position_ids=batch.positions,
            use_cache=False,
            output_hidden_states=True,
        )
    states = torch.cat([output.hidden_states[layer] for layer in LAYERS], dim=-1)
    return Known(states[:, :-1].float(), output.logits[:, 1:].float())


def step_losses(head: EagleHead, target: LlamaForCausalLM, batch: Batch) -> tuple[Tensor, list[float]]:
    """Return the loss of a batch in nats, and for each step the share of places where all drafts so far are right."""
    known = ask_target(target, batch)
    mask = batch.mask[:, :, :-1, :-1]
    with torch.no_grad():
        embeddings = target.model.embed_tokens(batch.input_ids[:, 1:])
    with torch.autocast("cpu", torch.bfloat16):
        drafts = head(embeddings, known.hidden_states, batch.positions[:, :-1], mask, num_steps=NUM_STEPS)
    wanted = known.logits[..., head.draft_ids].softmax(-1)
    best = known.logits.argmax(-1)
    may_be_drafted = torch.isin(best, head.draft_ids)
    # The token behind the next one is of the same document, and not the padding.
    counts = (batch.weights[:, 1:] > 0) & batch.mask[:, 0].diagonal(offset=-1, dim1=-2, dim2=-1)
    loss, right, shares = torch.zeros(()), counts, []
    for step, logits in enumerate(drafts):
        if step:
            first = torch.zeros_like(counts[:, :step])
            counts = counts & torch.cat([first, mask[:, 0].diagonal(offset=-step, dim1=-2, dim2=-1)], dim=1)
            right = torch.cat([first[:, :1], right[:, :-1]], dim=1) & counts
        losses = -(wanted * logits.float().log_softmax(-1)).sum(-1)
        loss = loss + STEP_WEIGHT**step * losses[counts & may_be_drafted].mean()
        right = right & (head.draft_ids[logits.argmax(-1)] == best)
        shares.append(float(right.sum() / counts.sum()))
    return loss, shares


def main() -> None:
    """Train the head that drafts for `target`."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--target", type=Path, default=HERE / "target", help="the trained target")
    parser.add_argument("--output", type=Path, default=HERE / "eagle3", help="folder of the head")
    add_options(parser, tokens=1.6e6)
    parser.add_argument("--draft-tokens", type=int, default=2048, help="tokens that the head can draft")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    tokenizer = Tokenizer.from_file(str(args.target / "tokenizer.json"))
    target = LlamaForCausalLM.from_pretrained(args.target, dtype=torch.float32, attn_implementation="sdpa").eval()
    head = EagleHead(target.config, usual_tokens(tokenizer, args.seed, args.draft_tokens))
    num_parameters = sum(parameter.numel() for parameter in head.parameters())
    num_steps = max(1, round(args.tokens / (args.batch_size * args.context)))
    print(f"head: {num_parameters:,} parameters, {num_steps} steps", flush=True)
    optimizer = torch.optim.AdamW(head.parameters(), lr=PEAK_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    batches = packed_batches(training_documents(args.seed), tokenizer, batch_size=args.batch_size, context=args.context)
    start_s = time.monotonic()
    means = [0.0] * NUM_STEPS
    for step, batch in enumerate(islice(batches, num_steps)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, num_steps, PEAK_LEARNING_RATE)
        loss, shares = step_losses(head, target, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        means = shares if step == 0 else [0.98 * mean + 0.02 * share for mean, share in zip(means, shares, strict=True)]
        if (step + 1) % args.report_every and step + 1 != num_steps:
            continue
        elapsed_s = time.monotonic() - start_s
        right = ", ".join(f"{mean:.3f}" for mean in means)
        print(
            f"step {step + 1}/{num_steps}  loss {loss.item():.3f}  right, all so far {right}"
            f"  {(step + 1) * args.batch_size * args.context / elapsed_s:,.0f} tokens/s  {elapsed_s:,.0f} s",
            flush=True,
        )
        head.save(args.output)


if __name__ == "__main__":
    main()
