# SPDX-License-Identifier: Apache-2.0
"""A stop of a server that loses no answer: report not ready, close admission, wait for the streams, end the rest.

Triton's own SIGTERM does not wait for the steps of an ensemble: its streams would get no further token and no end.
"""

import enum
import time
from collections.abc import Callable

from ensemble_configs.spec.end_times import CANCEL_S
from serving.process.control_channel import ask_all
from serving.triton.triton_process import TritonProcess
from trireme.base.errors import Unavailable

_POLL_S = 0.02
_WATCH_PERIOD_S = 0.2
_WORD_PERIOD_S = 10.0
# From the detokenizer's last chunk to the client: Triton's own queues, which nothing reports on.
_DELIVERY_S = 0.3


class Outcome(enum.Enum):
    """The end of the streams of a server that was asked to stop."""

    FINISHED = "finished"  # each came to its end
    CUT = "cut"  # some took longer than the timeout, and were ended with an error
    NOTHING = "nothing"  # there were no streams: the server was not serving
    LOST = "lost"  # the server failed


def drain(
    server: TritonProcess,
    *,
    timeout_s: float,
    delay_s: float = 0.0,
    failure: Callable[[], str | None] = lambda: None,
    is_hurried: Callable[[], bool] = lambda: False,
    tell: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Drain a server, and return when no stream runs any more or the server has failed.

    Args:
        timeout_s: how long running streams may go on.
        delay_s: how long new requests are taken before that, from a server that says it is not ready.
        failure: says what is wrong with the server, and is called during the delay; None: nothing.
        is_hurried: is called while waiting; True ends the wait at once.
        tell: takes progress for a person.
    """
    try:
        server.turn_unready()
        if delay_s:
            tell(f"not ready any more; new requests are taken for another {delay_s:g} s")
            _go_on(delay_s, failure, is_hurried)
        server.close_doors(Unavailable("the server is shutting down; send this to another one", reason="draining"))
        if _ask(server, "drain"):
            tell(f"not ready any more; running streams may take another {timeout_s:g} s")
        outcome = Outcome.FINISHED
        if not _all_end(server, timeout_s, is_hurried, tell):
            tell("ending the streams that are not done")
            outcome = Outcome.CUT
            _ask(server, "cancel")
            _all_end(server, CANCEL_S, lambda: False)
        time.sleep(_DELIVERY_S)
    except Unavailable as exc:
        tell(f"cannot drain: {exc.message}")
        return Outcome.LOST
    return outcome


def _go_on(delay_s: float, failure: Callable[[], str | None], is_hurried: Callable[[], bool]) -> None:
    """Go on serving for `delay_s` or until hurried. Raises: Unavailable: the server failed meanwhile."""
    deadline_s = time.monotonic() + delay_s
    while (left_s := deadline_s - time.monotonic()) > 0 and not is_hurried():
        if why := failure():
            raise Unavailable(why, reason="no_answer")
        time.sleep(min(left_s, _WATCH_PERIOD_S))


def _all_end(
    server: TritonProcess,
    timeout_s: float,
    is_hurried: Callable[[], bool],
    tell: Callable[[str], None] = lambda _: None,
) -> bool:
    now_s = time.monotonic()
    deadline_s, next_word_s = now_s + timeout_s, now_s + _WORD_PERIOD_S
    while _ask(server, "status"):
        now_s = time.monotonic()
        if now_s > deadline_s or is_hurried():
            return False
        if now_s > next_word_s:
            next_word_s += _WORD_PERIOD_S
            tell(f"streams still run, and may for another {deadline_s - now_s:.0f} s")
        time.sleep(_POLL_S)
    return True


def _ask(server: TritonProcess, operation: str) -> int:
    """Ask every adapter for an operation, and return how many streams they hold.

    A process that died holds none, which is no reason to lose the streams of the others: it may belong to a release on
    trial.

    Raises: Unavailable: an adapter hangs, or the server is dead.
    """
    if server.exit_status is not None:
        raise Unavailable(f"tritonserver ended with status {server.exit_status}", reason="no_answer")
    return ask_all(server.run_dir, operation, is_without_dead=True)
