# SPDX-License-Identifier: Apache-2.0
"""The measured part of a run: not the beginning, while the batch fills, nor the end, while it empties."""

import bisect
import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from clients.load_run.load_record import LoadRecord

_NUM_BINS = 120
_MIN_RECORDS = 20
_MIN_ROUNDS = 3  # of all users: without the first, fewer leave no more than one
_DRIFT_SHARE = 0.25  # of the mean number in flight, from the first third of the window to the last
_DRIFT_ERRORS = 3.0  # and that many standard errors

Series = npt.NDArray[np.float64]


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The window of a run, in nanoseconds from its start.

    A request belongs to it if it was due in [start_ns, end_ns).

    Attributes:
        is_steady: the number of requests in flight neither rose nor fell in it, beyond chance.
        why: how it was found, or what is wrong with it, in words.
    """

    start_ns: int
    end_ns: int
    is_steady: bool
    why: str

    @property
    def seconds(self) -> float:
        """Return the length of the window in seconds."""
        return (self.end_ns - self.start_ns) / 1e9

    def holds(self, at_ns: int) -> bool:
        """Return whether a moment is in the window."""
        return self.start_ns <= at_ns < self.end_ns


def steady_window(records: Sequence[LoadRecord], *, num_users: int | None, before_ns: float = math.inf) -> Window:
    """Return the part of a run in which the number of requests in flight only wavers.

    Its end is where requests stop coming: the last one's moment in an open loop, and in a closed one the moment from
    which fewer than `num_users` are in flight for good. Its beginning is where the number in flight first reaches its
    mean over the second half (the crossing-of-the-mean rule of simulation), and as many requests have ended as are in
    flight at a time, so that the wave of those that began together is over; at most half is cut. In a closed loop it
    is then the next moment from which whole rounds are measured: users go in waves, and part of one would be counted
    with its tokens and without its ends. Where there are too few requests for all that, it is the whole run, unsteady.

    Args:
        records: at least one.
        num_users: of a closed loop; None: an open one.
        before_ns: when the oldest request was due that has no record, because the load was stopped; nothing from there
            on is measured, for only those that were fast have one.
    """
    known = [record for record in records if record.due_ns < before_ns]
    what = f"{len(known)} requests" + ("" if before_ns == math.inf else f" due before {before_ns / 1e9:.1f} s")
    if len(known) < _MIN_RECORDS:
        return _whole_run(records, f"{what} are too few to tell its beginning from the rest")
    if num_users and len(known) < _MIN_ROUNDS * num_users:
        why = f"{what}, of {num_users} users, are less than {_MIN_ROUNDS} rounds, too few to leave out the first"
        return _whole_run(records, why)
    ends_ns = sorted(record.end_ns for record in records)
    if num_users:
        last = min(len(ends_ns) - num_users, bisect.bisect_right(ends_ns, before_ns) - 1)
        end_ns = ends_ns[last]
    else:
        end_ns = max(record.due_ns for record in known) + 1
    end_ns = max(_NUM_BINS, end_ns)
    in_flight = _in_flight(records, end_ns)
    level = float(in_flight[_NUM_BINS // 2 :].mean())
    crossing = int(np.argmax(in_flight >= level))
    turnover_ns = ends_ns[min(len(ends_ns), max(1, round(level))) - 1]
    cut = min(_NUM_BINS // 2, max(crossing, -(-turnover_ns * _NUM_BINS // end_ns)))
    start_ns = end_ns * cut // _NUM_BINS
    if num_users:
        start_ns = _round_ns(ends_ns, num_users, last=last, from_ns=start_ns)
    if not any(start_ns <= record.due_ns < end_ns for record in records):
        return _whole_run(records, "no request was due in its steady part")
    drift = _drift(in_flight[cut:], seconds_per_bin=end_ns / _NUM_BINS / 1e9, turnover_s=_mean_s(records))
    span = f"from {start_ns / 1e9:.1f} s to {end_ns / 1e9:.1f} s"
    if drift is None:
        return Window(start_ns=start_ns, end_ns=end_ns, is_steady=True, why=f"the steady part, {span}")
    word = "rose" if drift > 0 else "fell"
    why = (
        f"{span}, but it was not steady: requests in flight {word} by {abs(drift):.1f} from its first third to its "
        "last, so a longer run would have other figures"
    )
    return Window(start_ns=start_ns, end_ns=end_ns, is_steady=False, why=why)


def _whole_run(records: Sequence[LoadRecord], why: str) -> Window:
    """Return the window of the whole run, where no part of it can be told from the rest.

    Args:
        why: the reason in words.
    """
    end_ns = max(record.end_ns for record in records) + 1
    return Window(start_ns=0, end_ns=end_ns, is_steady=False, why=f"the whole run: {why}")


def _round_ns(ends_ns: Sequence[int], num_users: int, *, last: int, from_ns: int) -> int:
    """Return the first end from `from_ns` on with a multiple of `num_users` ends between it and the `last` one."""
    return next((at_ns for at_ns in ends_ns[last % num_users : last : num_users] if at_ns >= from_ns), from_ns)


def _drift(in_flight: Series, *, seconds_per_bin: float, turnover_s: float) -> float | None:
    """Return how far the level rose from the first third to the last; None: no farther than by chance.

    What is in flight now is what was in flight shortly before, so a third holds as many independent values as requests
    could follow one another in it.
    """
    third = max(1, len(in_flight) // 3)
    drift = float(in_flight[-third:].mean() - in_flight[:third].mean())
    moments = np.arange(len(in_flight))
    wavering = in_flight - np.polyval(np.polyfit(moments, in_flight, 1), moments)
    num_independent = max(1.0, third * seconds_per_bin / turnover_s)
    error = float(wavering.std()) * (2 / num_independent) ** 0.5
    limit = max(1.0, _DRIFT_SHARE * float(in_flight.mean()), _DRIFT_ERRORS * error)
    return drift if abs(drift) > limit else None


def _mean_s(records: Sequence[LoadRecord]) -> float:
    """Return how long a request takes on average, in seconds."""
    return max(1e-6, float(np.mean([record.end_ns - record.due_ns for record in records])) / 1e9)


def _in_flight(records: Sequence[LoadRecord], end_ns: int) -> Series:
    """Return how many requests were in flight, on average in each of the bins."""
    edges = np.linspace(0, end_ns, _NUM_BINS + 1)

    def passed(moments_ns: Sequence[int]) -> Series:
        """Return the integral over time of how many of these moments have passed."""
        times = np.sort(moments_ns).astype(np.float64)
        total = np.concatenate([[0.0], np.cumsum(times)])
        count = np.searchsorted(times, edges)
        return np.asarray(count * edges - total[count])

    begun, ended = ([getattr(record, name) for record in records] for name in ("due_ns", "end_ns"))
    return np.asarray(np.diff(passed(begun) - passed(ended)) / np.diff(edges))
