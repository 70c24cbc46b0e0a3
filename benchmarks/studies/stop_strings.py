# SPDX-License-Identifier: Apache-2.0
"""The cost of stop strings: for a request before its first token, and for each character of its text.

`python -m benchmarks.studies.stop_strings`. One thread, text in pieces of 4 characters as tokens bring it, CPU time.
The text is the project's README, which has the beginnings of the strings and none of them whole.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.support.report import environment, write_result
from serving.text.stop_strings import (
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_STRINGS_CHARS,
    StopStringMatcher,
    check_stop_strings,
)

_TEXT = (Path(__file__).parents[2] / "README.md").read_text()[:10_000]
_DELTAS = [_TEXT[start : start + 4] for start in range(0, len(_TEXT), 4)]


def cases() -> Iterator[tuple[str, list[str]]]:
    """Yield what clients send, and the most that a request may have: many strings, long ones, alike ones."""
    seeded = random.Random(3)

    def words(number: int, length: int) -> list[str]:
        return ["".join(seeded.choices("abcdefghijklmnopqrstuvwxyz", k=length)) for _ in range(number)]

    yield "1 string", ["\n\nUser:"]
    yield "4 strings", ["\n\nUser:", "</s>", "### ", "Observation:"]
    for number in (16, 256, MAX_STOP_STRINGS):
        yield f"{number:,} strings of 16 characters", words(number, 16)
    longest = MAX_STOP_STRINGS_CHARS // MAX_STOP_STRING_CHARS
    yield f"{longest} strings of 1,000 characters", words(longest, MAX_STOP_STRING_CHARS)
    yield f"{longest} strings of spaces but for the last", [" " * (999 - n) + "!" for n in range(longest)]


def measure(strings: Sequence[str], rounds: int) -> dict[str, float]:
    """Return times for a request and for text.

    A request has its check in the model's process, and a matcher in that and in the engine's.
    """
    check_us = _median_us(lambda: check_stop_strings(strings), rounds)
    matcher_us = _median_us(lambda: StopStringMatcher(strings), rounds)

    def follow() -> None:
        matcher = StopStringMatcher(strings)
        for delta in _DELTAS:
            matcher.push(delta)
        assert not matcher.stopped, "the text has none of them"

    text_us = _median_us(follow, rounds) - matcher_us
    return {"check_us": check_us, "matcher_us": matcher_us, "ns_per_character": text_us * 1000 / len(_TEXT)}


def _median_us(work: Callable[[], object], rounds: int) -> float:
    def once() -> float:
        start_ns = time.thread_time_ns()
        work()
        return (time.thread_time_ns() - start_ns) / 1000

    return statistics.median(once() for _ in range(rounds))


def main(
    rounds: Annotated[int, typer.Option(help="Rounds of each measurement.", min=1)] = 21,
    is_kept: Annotated[bool, typer.Option("--keep/--no-keep", help="Write the result to benchmarks/results.")] = True,
    out: Annotated[Path | None, typer.Option(help="Write the result to this file instead.")] = None,
) -> None:
    """Measure and print; takes some seconds."""
    rows = {name: measure(strings, rounds) for name, strings in cases()}
    table = Table("stop strings", "check, us", "matcher, us", "a character, ns", title="CPU time of one core")
    for name, row in rows.items():
        table.add_row(name, f"{row['check_us']:.1f}", f"{row['matcher_us']:.1f}", f"{row['ns_per_character']:.0f}")
    Console().print(table)
    if is_kept:
        result = {"benchmark": "stop_strings", "rounds": rounds, "rows": rows, "environment": environment()}
        typer.echo(f"written to {write_result('stop_strings', result, out)}", err=True)


if __name__ == "__main__":
    typer.run(main)
