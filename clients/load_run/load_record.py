# SPDX-License-Identifier: Apache-2.0
"""The record of one request of a load; every figure of a report is computed from records, whichever tool made them."""

from itertools import pairwise

import msgspec

from clients.infer_messages import GenerateChunk
from clients.latency import Arrival, RequestRecord
from trireme.base.errors import ServingError

DONE = "done"
REFUSED = "UNAVAILABLE"  # the code of a refusal, and of what follows
UNANSWERED = frozenset({"unreachable", "connection_lost"})  # reasons: nobody was there, or not to the end
_ERROR_LENGTH = 200  # characters of an error's text that are kept
_LOST = UNANSWERED | {"silent"}  # reasons that the client gives itself: the server said nothing


class LoadRecord(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """The record of one request; times are nanoseconds from the start of the run, on one monotonic clock.

    Attributes:
        session, turn: which request of the plan it is.
        due_ns: when it was to be sent; in a closed loop, when it was sent.
        sent_ns: when it was sent, at its last attempt.
        end_ns: when its end was known, good or bad.
        end: ``done``, or the code of the error that it ended with.
        reason: the error's reason in one word, where it has one: ``queue_full``, ``connection_lost``.
        times_ns: when each chunk came; tokens: how many tokens were in it, 0 where there was only text.
        input_tokens, output_tokens: numbers of tokens as the server counted them; None: it did not say.
    """

    session: int
    turn: int = 0
    due_ns: int
    sent_ns: int
    end_ns: int = 0
    end: str = ""
    error: str = ""
    reason: str | None = None
    times_ns: list[int] = []
    tokens: list[int] = []
    input_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    max_tokens: int | None = None
    num_attempts: int = 1
    priority: int | None = None
    tenant: str | None = None

    @property
    def is_done(self) -> bool:
        """Return whether the request ended well, even with nothing in it."""
        return self.end == DONE

    @property
    def is_refused(self) -> bool:
        """Return whether the server said that it does not take the request.

        A tool that tells no reason is believed.
        """
        return self.end == REFUSED and self.reason not in _LOST

    @property
    def output_tokens(self) -> int:
        """Return the tokens in all chunks."""
        return sum(self.tokens)

    @property
    def lag_ns(self) -> int:
        """Return how much later than due the request was sent; 0 if it was sent more than once."""
        return self.sent_ns - self.due_ns if self.num_attempts == 1 else 0

    def add_chunk(self, chunk: GenerateChunk, *, from_ns: int = 0) -> None:
        """Note a chunk of the answer. Args: `from_ns`: start of the run, on the clock of the chunk's time."""
        self.times_ns.append(chunk.received_ns - from_ns)
        self.tokens.append(chunk.num_output_tokens or 0)
        if self.input_tokens is None:
            self.input_tokens = chunk.num_input_tokens
        self.finish_reason = chunk.finish_reason or self.finish_reason

    def fail(self, exc: ServingError) -> None:
        """Note the error that the request ended with."""
        reason = exc.facts.get("reason")
        self.end, self.error = exc.code, exc.message[:_ERROR_LENGTH]
        self.reason = None if reason is None else str(reason)

    def shift(self, by_ns: int) -> None:
        """Count its times from another moment."""
        self.due_ns += by_ns
        self.sent_ns += by_ns
        self.end_ns += by_ns
        self.times_ns = [at_ns + by_ns for at_ns in self.times_ns]

    def latencies(self) -> RequestRecord:
        """Return the times for `clients.latency`: from when the request was due, whatever made it late."""
        return RequestRecord(self.due_ns, tuple(map(Arrival, self.times_ns, self.tokens)))


class Unended(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that still ran when their load was stopped, in nanoseconds from the start; they have no record.

    Attributes:
        since_ns: when the oldest of them was due. stopped_ns: when they were given up.
    """

    count: int
    since_ns: int
    stopped_ns: int

    @property
    def warning(self) -> str:
        """Return a warning for readers: a load that is stopped because the server stalls has no record of it."""
        return (
            f"{self.count} request{'s' if self.count > 1 else ''}, due from {self.since_ns / 1e9:.1f} s on, had not "
            f"ended when the load was stopped at {self.stopped_ns / 1e9:.1f} s: they are in no figure, however long "
            "they waited"
        )


def check_record(record: LoadRecord) -> None:
    """Raise a ValueError, with the field's name, where the numbers cannot be those of a request."""
    times_ns, tokens = record.times_ns, record.tokens
    if len(tokens) != len(times_ns):
        raise ValueError(
            f"`tokens` has {len(tokens)} numbers and `times_ns` {len(times_ns)}; each chunk has one of both"
        )
    if any(count < 0 for count in tokens):
        raise ValueError(f"`tokens` has a number below 0: {min(tokens)}")
    if record.input_tokens is not None and record.input_tokens < 0:
        raise ValueError(f"`input_tokens` is below 0: {record.input_tokens}")
    if any(late < early for early, late in pairwise(times_ns)):
        raise ValueError("`times_ns` has a chunk that came before the one in front of it")
    first_ns, last_ns = (times_ns[0], times_ns[-1]) if times_ns else (record.due_ns, record.due_ns)
    if first_ns < record.due_ns:
        raise ValueError(f"`times_ns` begins at {first_ns}, before `due_ns` ({record.due_ns})")
    if record.end_ns < last_ns:
        raise ValueError(
            f"`end_ns` ({record.end_ns}) is before the {'last chunk' if times_ns else 'start'} ({last_ns})"
        )
