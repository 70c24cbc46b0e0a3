# SPDX-License-Identifier: Apache-2.0
"""The evaluation of the demo models, on held-out wordings, pairs and sentences; it prints a table or JSON."""

import argparse
import json
import random
from pathlib import Path

import numpy as np
from document import BOS, EOS, Document, as_chat
from facts import held_out_facts
from language_tables import LANGUAGES
from languages import capital_documents, held_out_sentences
from runners import OpenVinoRunner, Runner, TorchRunner
from stories import write_story
from sums import held_out_sums
from tokenizers import Tokenizer

HERE = Path(__file__).parent
MAX_ANSWER_TOKENS = 48
NUM_STORIES = 40
# No training run uses this seed, so these stories are new combinations of the known sentences.
STORY_SEED = 987_654
SHOWN_PROMPTS = (
    "What is the capital of France?",
    "What is 23 + 45?",
    "23 + 45 =",
    "法国的首都是哪里？",
    "フランスの首都はどこですか？",
    "ما هي عاصمة فرنسا؟",
    "फ्रांस की राजधानी क्या है?",
    "¿Cuál es la capital de Francia?",
    "What is the emoji for a family?",
    "Once upon a time",
    "Tell me a story about a fox.",
)


def prompt_ids(prompt: str, tokenizer: Tokenizer) -> list[int]:
    """Return the ids of `<|bos|>` and the prompt."""
    ids: list[int] = tokenizer.encode(prompt).ids
    return ids


def exact_fraction(runner: Runner, documents: list[Document], tokenizer: Tokenizer, *, limit: int) -> float:
    """Return the share of at most `limit` documents whose generated text equals the expected one in every character."""
    if len(documents) > limit:
        documents = random.Random(1).sample(documents, limit)
    prompts = [prompt_ids(document.prompt, tokenizer) for document in documents]
    outputs = runner.generate(prompts, max_tokens=MAX_ANSWER_TOKENS)
    texts = [tokenizer.decode(ids, skip_special_tokens=False) for ids in outputs]
    return float(np.mean([text == document.completion for text, document in zip(texts, documents, strict=True)]))


def perplexity(runner: Runner, texts: list[str], tokenizer: Tokenizer) -> float:
    """Return exp of the mean negative log likelihood per token, the final `<|eos|>` included."""
    losses: list[float] = []
    for text in texts:
        ids = prompt_ids(text + EOS, tokenizer)
        scores = runner.logits(ids[:-1]).astype(np.float64)
        top = scores.max(-1, keepdims=True)
        log_total = np.log(np.exp(scores - top).sum(-1)) + top[:, 0]
        losses += list(log_total - scores[np.arange(len(ids) - 1), ids[1:]])
    return float(np.exp(np.mean(losses)))


def agreement(target: Runner, draft: Runner, prompts: list[str], tokenizer: Tokenizer) -> float:
    """Return the share of the target's greedy tokens that the draft would have proposed in their place."""
    encoded = [prompt_ids(prompt, tokenizer) for prompt in prompts]
    num_same = num_tokens = 0
    for prompt, output in zip(encoded, target.generate(encoded, max_tokens=128), strict=True):
        proposed = draft.logits(prompt + output)[len(prompt) - 1 : -1].argmax(-1)
        num_same += int((proposed == np.array(output, dtype=np.int64)).sum())
        num_tokens += len(output)
    return num_same / max(1, num_tokens)


def held_out_texts() -> dict[str, list[str]]:
    """Return plain texts per language that training never saw; English is stories."""
    rng = random.Random(STORY_SEED)
    texts = {"en": [write_story(rng, num_episodes=1 + number % 2) for number in range(NUM_STORIES)]}
    return texts | {table.code: held_out_sentences(table) for table in LANGUAGES}


def agreement_prompts() -> dict[str, list[str]]:
    """Return the prompts that the draft's agreement is measured on, per kind."""
    rng = random.Random(STORY_SEED)
    return {
        "facts": [document.prompt for document in rng.sample(held_out_facts(), 60)],
        "sums": [document.prompt for document in rng.sample(held_out_sums(), 60)],
        "stories": [f"Tell me a story about a {animal}." for animal in ("fox", "bear", "cat", "pig", "lion", "hen")],
        "languages": [question for table in LANGUAGES for question, _ in table.asks]
        + [
            table.capital_questions[0].format(country=country, city=city)
            for table in LANGUAGES
            for country, city in table.capitals[:4]
        ],
    }


def measure(runner: Runner, tokenizer: Tokenizer, *, limit: int) -> dict[str, float]:
    """Return every figure of one model in one form."""
    facts, sums = held_out_facts(), held_out_sums()
    bare = [document for document in sums if document.prompt.endswith("=")]
    asked = [document for document in sums if not document.prompt.endswith("=")]
    suites = {
        "facts, held-out wordings": facts,
        "facts, the same in chat form": [as_chat(document) for document in facts],
        "sums, held-out pairs, `a + b =`": bare,
        "sums, held-out pairs, asked": asked,
    }
    suites |= {
        f"capitals in {table.code}, trained wordings": capital_documents(table) for table in LANGUAGES if table.capitals
    }
    figures = {name: exact_fraction(runner, suite, tokenizer, limit=limit) for name, suite in suites.items()}
    for code, texts in held_out_texts().items():
        figures[f"perplexity {code}"] = perplexity(runner, texts, tokenizer)
    return figures


def show_answers(runner: Runner, tokenizer: Tokenizer) -> None:
    """Print what the model says to a few prompts."""
    outputs = runner.generate([prompt_ids(prompt, tokenizer) for prompt in SHOWN_PROMPTS], max_tokens=300)
    for prompt, output in zip(SHOWN_PROMPTS, outputs, strict=True):
        print(f"{prompt!r} -> {tokenizer.decode(output, skip_special_tokens=False)!r} ({len(output)} tokens)")


def print_table(columns: dict[str, dict[str, float]]) -> None:
    """Print a Markdown table: a row per figure, a column per model; shares in percent."""
    print("| | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns))
    rows = dict.fromkeys(name for figures in columns.values() for name in figures)
    for row in rows:
        cells = [figures.get(row) for figures in columns.values()]
        shown = [
            "" if cell is None else f"{cell:.2f}" if "perplexity" in row else f"{100 * cell:.1f} %" for cell in cells
        ]
        print(f"| {row} | " + " | ".join(shown) + " |")


def main() -> None:
    """Evaluate target and draft, as bf16 checkpoints and as int8 IR."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--checkpoints", type=Path, default=HERE, help="holds target, draft and openvino")
    parser.add_argument("--form", choices=["bf16", "int8", "both"], default="both")
    parser.add_argument("--limit", type=int, default=10_000, help="documents per suite, drawn from a fixed seed")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    parser.add_argument("--no-answers", action="store_true", help="print figures only")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.checkpoints / "target" / "tokenizer.json"))
    if tokenizer.token_to_id(BOS) is None:
        raise SystemExit(f"{args.checkpoints / 'target'}: the tokenizer lacks {BOS}; run tokenizer.py")
    columns: dict[str, dict[str, float]] = {}
    for form in ("bf16", "int8") if args.form == "both" else (args.form,):
        make = TorchRunner if form == "bf16" else OpenVinoRunner
        root = args.checkpoints if form == "bf16" else args.checkpoints / "openvino"
        target, draft = make(root / "target"), make(root / "draft")
        for name, runner in (("target", target), ("draft", draft)):
            columns[f"{name} {form}"] = measure(runner, tokenizer, limit=args.limit)
        for kind, prompts in agreement_prompts().items():
            key = f"greedy tokens equal to the target's, {kind}"
            columns[f"draft {form}"][key] = agreement(target, draft, prompts, tokenizer)
        if not args.no_answers:
            show_answers(target, tokenizer)
    print_table(columns)
    if args.json:
        args.json.write_text(json.dumps(columns, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
