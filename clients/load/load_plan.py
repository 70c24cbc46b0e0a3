# SPDX-License-Identifier: Apache-2.0
"""A workload as sessions of requests: everything is drawn by seed before the first one is sent."""

import itertools
import math
import random
from collections.abc import Iterator

import msgspec

from clients.infer_messages import GenerateRequest
from clients.load.prompts import Writer
from clients.load.trace_file import TraceRow, read_trace
from clients.load.workload_spec import (
    ConversationWorkload,
    FixedWorkload,
    Lengths,
    SharedPrefixWorkload,
    SyntheticWorkload,
    TraceWorkload,
    Workload,
)
from clients.load_run.load_record import LoadRecord

_CLASSES = {"premium": 1, "standard": 2, "batch": 3}  # Triton's numbers
_ANY_END = -1  # an end token that no model makes


class Turn(msgspec.Struct, frozen=True):
    """A request of a session."""

    text: str  # what is new in the prompt
    max_tokens: int
    think_s: float = 0.0  # from the end of the answer before


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A sequence of requests, one after the other; mostly it is a single one.

    Attributes:
        index: in the plan.
        due_s: when its first request is due, from the start of the run; None: the loop says.
        opening: every prompt of it begins so.
        is_exact: the answers have exactly `max_tokens` tokens.
    """

    index: int
    turns: tuple[Turn, ...]
    due_s: float | None = None
    opening: str = ""
    priority: int | None = None
    tenant: str | None = None
    temperature: float | None = None
    is_exact: bool = True

    def request(self, turn: int, history: str) -> GenerateRequest:
        """Return the request of a turn.

        Args:
            history: what was said before this turn, answers included.
        """
        asked = self.turns[turn]
        return GenerateRequest(
            text_input=f"{self.opening}{history}{asked.text}",
            max_tokens=asked.max_tokens,
            min_tokens=asked.max_tokens if self.is_exact else None,
            end_id=_ANY_END if self.is_exact else None,
            stream=True,
            exclude_input_in_output=True,
            temperature=self.temperature,
            top_p=None if self.temperature is None else 1.0,
            return_num_input_tokens=True,
            return_num_output_tokens=True,
            return_finish_reason=True,
            priority=self.priority,
            tenant=self.tenant,
        )

    def record(self, turn: int, *, due_ns: int, sent_ns: int) -> LoadRecord:
        """Return the record of a turn's request that is about to be sent; times are of the run's clock."""
        return LoadRecord(
            session=self.index, turn=turn, due_ns=due_ns, sent_ns=sent_ns, max_tokens=self.turns[turn].max_tokens,
            priority=self.priority, tenant=self.tenant, times_ns=[], tokens=[],
        )  # fmt: skip


def sessions(workload: Workload, writer: Writer, *, seed: int) -> Iterator[Session]:
    """Yield sessions without end, or those of a trace; only a trace's have `due_s`."""
    rng = random.Random(seed)
    tenants = itertools.cycle(workload.tenants) if workload.tenants else itertools.repeat(None)
    for index, session in enumerate(_bare(workload, writer, rng)):
        yield msgspec.structs.replace(
            session,
            index=index,
            priority=session.priority or _priority(workload, rng),
            tenant=session.tenant or next(tenants),
            temperature=workload.temperature,
            is_exact=workload.is_exact,
        )


def _bare(workload: Workload, writer: Writer, rng: random.Random) -> Iterator[Session]:
    match workload:
        case FixedWorkload():
            for prompt in itertools.cycle(workload.prompts):
                yield _single(Turn(prompt, workload.max_tokens))
        case SyntheticWorkload():
            while True:
                yield _single(_turn(workload.isl, workload.osl, writer, rng))
        case SharedPrefixWorkload():
            prefixes = [writer.write(workload.prefix_tokens) + " " for _ in range(workload.num_prefixes)]
            while True:
                turn = _turn(workload.isl, workload.osl, writer, rng)
                yield Session(index=0, turns=(turn,), opening=rng.choice(prefixes))
        case ConversationWorkload():
            system = writer.write(workload.system_tokens) + "\n" if workload.system_tokens else ""
            while True:
                yield _conversation(workload, system, writer, rng)
        case TraceWorkload():
            for row in read_trace(workload):
                yield _of_row(row, writer)


def _single(turn: Turn) -> Session:
    return Session(index=0, turns=(turn,))


def _turn(isl: Lengths, osl: Lengths, writer: Writer, rng: random.Random, think_s: float = 0.0) -> Turn:
    num_tokens = draw(isl, rng)
    if isl.mean >= writer.least_tokens:  # otherwise it is refused
        num_tokens = max(num_tokens, writer.least_tokens)
    return Turn(writer.write(num_tokens), draw(osl, rng), think_s)


def _conversation(workload: ConversationWorkload, system: str, writer: Writer, rng: random.Random) -> Session:
    turns = []
    for number in range(draw(workload.turns, rng)):
        think_s = rng.expovariate(1 / workload.think_s) if number and workload.think_s else 0.0
        turn = _turn(workload.isl, workload.osl, writer, rng, think_s)
        turns.append(msgspec.structs.replace(turn, text=f"\nuser: {turn.text}\nassistant:"))
    return Session(index=0, turns=tuple(turns), opening=system)


def _of_row(row: TraceRow, writer: Writer) -> Session:
    prompt = row.prompt if row.prompt is not None else writer.write(max(row.input_tokens, writer.least_tokens))
    turn = Turn(prompt, row.output_tokens)
    return Session(index=0, turns=(turn,), due_s=row.at_s, priority=row.priority, tenant=row.tenant)


def _priority(workload: Workload, rng: random.Random) -> int | None:
    shares = workload.priorities
    return _CLASSES[rng.choices([*shares], [*shares.values()])[0]] if shares else None


def draw(lengths: Lengths, rng: random.Random) -> int:
    """Return a length that was drawn, in tokens."""
    mean, stddev = lengths.mean, lengths.stddev
    match lengths.distribution:
        case "normal":
            drawn = rng.gauss(mean, stddev)
        case "uniform":  # of that mean and that standard deviation
            drawn = rng.uniform(mean - math.sqrt(3) * stddev, mean + math.sqrt(3) * stddev)
        case "lognormal":
            variance = math.log1p((stddev / mean) ** 2)
            drawn = rng.lognormvariate(math.log(mean) - variance / 2, math.sqrt(variance))
    return max(lengths.min, min(round(drawn), lengths.max or math.inf))  # type: ignore[return-value]
