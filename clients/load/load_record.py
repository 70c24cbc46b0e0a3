# SPDX-License-Identifier: Apache-2.0
"""What became of one request of a load; every figure of a report is computed from these, whichever tool made them."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from clients.latency import Arrival, RequestRecord
from ensemble_configs.errors import SpecError

DONE = "done"
REFUSED = "UNAVAILABLE"


class LoadRecord(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """One request. Times are nanoseconds from the start of the run, on one monotonic clock.

    Attributes:
        session, turn: which request of the plan it is.
        due_ns: when it was to be sent; in a closed loop, when it was sent.
        sent_ns: when it was sent, at its last attempt.
        end_ns: when its end was known, good or bad.
        end: ``done``, or the code of the error that it ended with.
        times_ns: when each chunk came; tokens: how many were in it, 0 where there was only text.
        input_tokens, output_tokens: as the server counted them; None: it did not say.
    """

    session: int
    turn: int = 0
    due_ns: int
    sent_ns: int
    end_ns: int = 0
    end: str = ""
    error: str = ""
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
        """It ended well, even with nothing in it."""
        return self.end == DONE

    @property
    def output_tokens(self) -> int:
        """In all chunks."""
        return sum(self.tokens)

    @property
    def lag_ns(self) -> int:
        """How much later than due it was sent, of a request that was sent once."""
        return self.sent_ns - self.due_ns if self.num_attempts == 1 else 0

    def shift(self, by_ns: int) -> None:
        """Count its times from another moment."""
        self.due_ns += by_ns
        self.sent_ns += by_ns
        self.end_ns += by_ns
        self.times_ns = [at_ns + by_ns for at_ns in self.times_ns]

    def latencies(self) -> RequestRecord:
        """For `clients.latency`: from when it was due, whoever was late with it."""
        return RequestRecord(self.due_ns, tuple(map(Arrival, self.times_ns, self.tokens)))


def write_records(path: Path, records: Iterable[LoadRecord]) -> None:
    """A line for each."""
    with path.open("wb") as file:
        file.writelines(msgspec.json.encode(record) + b"\n" for record in records)


def read_records(path: Path) -> list[LoadRecord]:
    """What `write_records` wrote.

    Raises:
        SpecError: it cannot be read, or a line is no record.
    """
    try:
        return msgspec.json.Decoder(LoadRecord).decode_lines(path.read_bytes())
    except OSError as exc:
        raise SpecError(f"{path} cannot be read: {exc.strerror or exc}", field="run") from exc
    except msgspec.MsgspecError as exc:
        raise SpecError(f"{path} does not hold the records of a run: {exc}", field="run") from exc
