# SPDX-License-Identifier: Apache-2.0
"""Speed of detokenization, for every family of tokenizers and any length, beside the library's own `DecodeStream`.

`python -m benchmarks.detokenizer`. One thread, one token at a time as an engine makes them, CPU time, so that a busy
machine changes little; the cost of a token must be the same at 100 tokens and at 100,000.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, decoders, models
from tokenizers.decoders import DecodeStream
from tokenizers.pre_tokenizers import ByteLevel

from benchmarks.support.report import environment, write_result
from serving.text.detokenization import TextDecoder

LENGTHS = (100, 1_000, 10_000, 100_000)
GOAL_TOKENS_PER_S = 500_000
# DecodeStream decodes again what it holds back: longer than this, bytes that never complete a character take minutes.
LONGEST_INVALID_FOR_THE_LIBRARY = 1_000

_WORDS = ["▁the", "▁cat", "s", "▁sat", "▁on", "▁a", "▁mat", ".", "##ing", "▁hello", "ness", ","]
_BYTE_LEVEL_WORDS = ["Ġthe", "Ġcat", "s", "Ġsat", "Ġon", "Ġa", "Ġmat", ".", "ing", "Ġhello", "ness", ","]
_CHARACTERS = "你好，世界。नमस्ते😀👩‍🚀é"
_SPECIAL, _ADDED = "<|special|>", "<added>"


@dataclass(frozen=True)
class Case:
    """A tokenizer and what is decoded with it, over and over."""

    tokenizer: Tokenizer
    token_ids: Sequence[int]
    is_valid: bool = True

    def repeated(self, length: int) -> list[int]:
        """Return `length` token ids."""
        return list(itertools.islice(itertools.cycle(self.token_ids), length))


def cases() -> Iterator[tuple[str, Case]]:
    """Yield each family of tokenizers with words, and with characters in bytes where it has bytes, valid and not.

    There is an added and a special token among each dozen.
    """
    byte_level = _tokenizer([*sorted(ByteLevel.alphabet()), *_BYTE_LEVEL_WORDS], decoders.ByteLevel())
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    fallback = _tokenizer([*(f"<0x{byte:02X}>" for byte in range(256)), *_WORDS], decoders.Sequence(steps))
    yield from _with_bytes("byte-level BPE", byte_level, _BYTE_LEVEL_WORDS, _in_byte_level)
    yield from _with_bytes("SentencePiece with byte fallback", fallback, _WORDS, _in_byte_tokens)
    yield "Metaspace, words", _case(_tokenizer(_WORDS, decoders.Metaspace()), _WORDS)
    yield "WordPiece, words", _case(_tokenizer(_WORDS, decoders.WordPiece(cleanup=True)), _WORDS)


def _with_bytes(
    name: str, tokenizer: Tokenizer, words: Sequence[str], spell: Callable[[str], list[str]]
) -> Iterator[tuple[str, Case]]:
    yield f"{name}, words", _case(tokenizer, words)
    yield f"{name}, characters in bytes", _case(tokenizer, spell(_CHARACTERS))
    continuation = tokenizer.token_to_id(spell("é")[-1])  # 0xA9, never the beginning of a character
    yield f"{name}, bytes that are no character", Case(tokenizer, [continuation], is_valid=False)


def _in_byte_level(text: str) -> list[str]:
    return [byte for piece, _ in ByteLevel(add_prefix_space=False).pre_tokenize_str(text) for byte in piece]


def _in_byte_tokens(text: str) -> list[str]:
    return [f"<0x{byte:02X}>" for byte in text.encode()]


def _tokenizer(tokens: Sequence[str], decoder: object) -> Tokenizer:
    vocab = {token: token_id for token_id, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.BPE(vocab, [], byte_fallback="<0x00>" in vocab))
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens([_SPECIAL])
    tokenizer.add_tokens([_ADDED])
    return tokenizer


def _case(tokenizer: Tokenizer, tokens: Sequence[str]) -> Case:
    return Case(tokenizer, [tokenizer.token_to_id(token) for token in (*tokens, _SPECIAL, *tokens, _ADDED)])


def ours(decoder: TextDecoder, token_ids: Sequence[int]) -> None:
    """Decode one stream, one token at a time."""
    stream = decoder.new_stream()
    for token_id in token_ids:
        stream.push((token_id,))
    stream.flush()


def the_librarys(tokenizer: Tokenizer, token_ids: Sequence[int]) -> None:
    """Decode one stream with `DecodeStream`, one token at a time."""
    stream = DecodeStream(skip_special_tokens=True)
    for token_id in token_ids:
        stream.step(tokenizer, token_id)


def ns_per_token(decode: Callable[[Sequence[int]], None], token_ids: Sequence[int], rounds: int) -> float:
    """Return the median CPU time for a token in nanoseconds, of `rounds` rounds of at least 20,000 tokens."""
    streams = max(1, 20_000 // len(token_ids))

    def measure() -> float:
        start_ns = time.thread_time_ns()
        for _ in range(streams):
            decode(token_ids)
        return (time.thread_time_ns() - start_ns) / (streams * len(token_ids))

    return statistics.median(measure() for _ in range(rounds))


def measure_case(case: Case, rounds: int) -> dict[str, dict[int, float]]:
    """Return nanoseconds for a token, by length, of both decoders."""
    decoder = TextDecoder(case.tokenizer)
    found: dict[str, dict[int, float]] = {"ours": {}, "DecodeStream": {}}
    for length in LENGTHS:
        ids = case.repeated(length)
        found["ours"][length] = ns_per_token(lambda ids: ours(decoder, ids), ids, rounds)
        if case.is_valid or length <= LONGEST_INVALID_FOR_THE_LIBRARY:
            rounds_of_library = rounds if case.is_valid else 1
            found["DecodeStream"][length] = ns_per_token(
                lambda ids: the_librarys(case.tokenizer, ids), ids, rounds_of_library
            )
    return found


def main(
    rounds: Annotated[int, typer.Option(help="Rounds of each measurement.", min=1)] = 9,
    is_kept: Annotated[bool, typer.Option("--keep/--no-keep", help="Write the result to benchmarks/results.")] = True,
    out: Annotated[Path | None, typer.Option(help="Write the result to this file instead.")] = None,
) -> None:
    """Measure and print; takes a minute or two."""
    rows = {name: measure_case(case, rounds) for name, case in cases()}
    Console().print(_table(rows))
    slowest = 1e9 / max(ns for row in rows.values() for ns in row["ours"].values())
    typer.echo(f"slowest of ours: {slowest:,.0f} tokens/s; the goal is {GOAL_TOKENS_PER_S:,}")
    if is_kept:
        result = {"benchmark": "detokenizer", "rounds": rounds, "ns_per_token": rows, "environment": environment()}
        typer.echo(f"written to {write_result('detokenizer', result, out)}", err=True)


def _table(rows: dict[str, dict[str, dict[int, float]]]) -> Table:
    table = Table(title="nanoseconds of one core for a token, one token at a time: ours / DecodeStream")
    table.add_column("tokenizer and text")
    for length in LENGTHS:
        table.add_column(f"{length:,} tokens", justify="right")
    for name, row in rows.items():
        library = row["DecodeStream"]
        cells = [f"{row['ours'][n]:.0f} / {f'{library[n]:.0f}' if n in library else '-'}" for n in LENGTHS]
        table.add_row(name, *cells)
    return table


if __name__ == "__main__":
    typer.run(main)
