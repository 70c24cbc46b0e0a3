# SPDX-License-Identifier: Apache-2.0
"""The training of the target and the draft model from scratch on the CPU; they are written as bf16 safetensors."""

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from corpus import curriculum
from document import BOS, EOS, PAD, Document
from facts import held_out_facts
from packing import Batch, encode_document, packed_batches
from sums import held_out_sums
from tokenizer import VOCAB_SIZE, save_tokenizer, train_tokenizer
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).parent
MAX_POSITIONS = 2048
WARMUP_FRACTION = 0.04


@dataclass(frozen=True)
class Shape:
    """Dimensions of a model; multiples of 128, so that every group size of int4 divides them."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    peak_learning_rate: float


SHAPES = {
    "target": Shape(256, 768, 5, 4, 2, 1e-3),
    "draft": Shape(128, 384, 3, 2, 1, 2e-3),
}


def create_model(shape: Shape, tokenizer: Tokenizer) -> LlamaForCausalLM:
    """Return a Llama with random weights, input and output embedding tied."""
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.token_to_id(BOS),
        eos_token_id=tokenizer.token_to_id(EOS),
        pad_token_id=tokenizer.token_to_id(PAD),
    )
    return LlamaForCausalLM(config)


def save_model(model: LlamaForCausalLM, tokenizer: Tokenizer, directory: Path) -> None:
    """Write a bf16 copy and the tokenizer in the layout of Hugging Face."""
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    copy = copy.to(torch.bfloat16)
    copy.generation_config = GenerationConfig(
        bos_token_id=model.config.bos_token_id,
        eos_token_id=model.config.eos_token_id,
        pad_token_id=model.config.pad_token_id,
    )
    copy.save_pretrained(directory)
    (directory / "model.safetensors").chmod(0o644)  # the safetensors library leaves it readable by its owner only
    save_tokenizer(tokenizer, directory)


def learning_rate(step: int, num_steps: int, peak: float) -> float:
    """Return the learning rate of a step: linear warm-up, then a cosine to a fiftieth of the peak."""
    num_warmup = max(1, round(num_steps * WARMUP_FRACTION))
    if step < num_warmup:
        return peak * (step + 1) / num_warmup
    progress = (step - num_warmup) / max(1, num_steps - num_warmup)
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))


def weighted_loss(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Return the mean cross entropy in nats, weighted per target token."""
    losses = cross_entropy(logits.flatten(0, 1).float(), batch.targets.flatten(), reduction="none")
    weights = batch.weights.flatten()
    return (losses * weights).sum() / weights.sum()


def exact_fraction(model: LlamaForCausalLM, documents: list[Document], tokenizer: Tokenizer) -> float:
    """Return the share of documents whose completion greedy decoding would write token by token, `<|eos|>` included.

    One forward pass suffices: as long as every token so far was right, the prompt is the same.
    """
    encoded = [encode_document(document, tokenizer) for document in documents]
    longest = max(len(item.ids) for item in encoded)
    pad = tokenizer.token_to_id(PAD)
    ids = torch.tensor([item.ids + [pad] * (longest - len(item.ids)) for item in encoded])
    counts = torch.tensor([[w >= 1 for w in item.weights] + [False] * (longest - len(item.ids)) for item in encoded])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        predicted = model(input_ids=ids[:, :-1], use_cache=False).logits.argmax(-1)
    wrong = (predicted != ids[:, 1:]) & counts[:, 1:]
    return 1 - float(wrong.any(-1).float().mean())


def train(
    model: LlamaForCausalLM, batches: Iterator[Batch], *, num_steps: int, peak: float, use_compile: bool
) -> Iterator[tuple[int, float]]:
    """Train in place, and yield (step, loss) after every step."""
    decayed = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    plain = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.98), fused=True)
    forward = torch.compile(model) if use_compile else model
    for step, batch in enumerate(islice(batches, num_steps)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, num_steps, peak)
        with torch.autocast("cpu", torch.bfloat16):
            output = forward(
                input_ids=batch.input_ids,
                attention_mask=batch.mask,
                position_ids=batch.positions,
                use_cache=False,
            )
        loss = weighted_loss(output.logits, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield step, loss.item()


def run(name: str, args: argparse.Namespace) -> None:
    """Train one of the two models from its seed and save it, in between too."""
    torch.manual_seed(args.seed)
    tokenizer = train_tokenizer(args.seed)
    shape, directory = SHAPES[name], args.output / name
    model = create_model(shape, tokenizer)
    num_steps = max(1, round(args.tokens / (args.batch_size * args.context)))
    print(f"{name}: {model.num_parameters():,} parameters, {num_steps} steps", flush=True)
    batches = packed_batches(curriculum(args.seed), tokenizer, batch_size=args.batch_size, context=args.context)
    suites = {"facts": held_out_facts()[::5], "sums": held_out_sums()[::6]}
    start_s = time.monotonic()
    mean_loss = 0.0
    steps = train(model, batches, num_steps=num_steps, peak=shape.peak_learning_rate, use_compile=not args.no_compile)
    for step, loss in steps:
        mean_loss = loss if step == 0 else 0.98 * mean_loss + 0.02 * loss
        if (step + 1) % args.report_every and step + 1 != num_steps:
            continue
        elapsed_s = time.monotonic() - start_s
        tokens_per_s = (step + 1) * args.batch_size * args.context / elapsed_s
        exact = {suite: exact_fraction(model, documents, tokenizer) for suite, documents in suites.items()}
        print(
            f"{name} step {step + 1}/{num_steps}  loss {mean_loss:.3f}"
            f"  held-out facts {exact['facts']:.3f}  sums {exact['sums']:.3f}"
            f"  {tokens_per_s:,.0f} tokens/s  {elapsed_s:,.0f} s",
            flush=True,
        )
        save_model(model, tokenizer, directory)


def add_options(parser: argparse.ArgumentParser, *, tokens: float) -> None:
    """Add the options of every training; `tokens` is the default number of training tokens."""
    parser.add_argument("--tokens", type=float, default=tokens, help="training tokens of a model")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--batch-size", type=int, default=4, help="rows per step")
    parser.add_argument("--context", type=int, default=320, help="tokens per row")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--report-every", type=int, default=250, help="steps between reports and saves")


def main() -> None:
    """Train the demo models from scratch; the same seed and thread count give the same weights on the same machine."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--model", choices=[*SHAPES, "both"], default="both")
    add_options(parser, tokens=4.8e6)
    parser.add_argument("--no-compile", action="store_true", help="do without torch.compile")
    parser.add_argument("--output", type=Path, default=HERE, help="gets the folders target and draft")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for name in SHAPES if args.model == "both" else [args.model]:
        run(name, args)


if __name__ == "__main__":
    main()
