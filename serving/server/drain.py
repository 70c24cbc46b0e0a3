# SPDX-License-Identifier: Apache-2.0
"""How a server is stopped so that nobody's answer is lost: close admission, wait, end the rest, stop.

Triton's own SIGTERM does not wait for the steps of an ensemble: its streams would get no further token and no end.
"""

import time
from collections.abc import Callable

from ensemble_configs.errors import Unavailable
from serving.lifeline import ask_all
from serving.server.triton_process import TritonProcess

_POLL_S = 0.02
_CANCEL_TIMEOUT_S = 5.0
# From the detokenizer's last chunk to the client: Triton's own queues, which nothing reports on.
_DELIVERY_S = 0.3


def drain(
    server: TritonProcess,
    *,
    timeout_s: float,
    is_hurried: Callable[[], bool] = lambda: False,
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    """Return when no stream runs any more, or none can be helped.

    Args:
        timeout_s: how long running streams may go on.
        is_hurried: asked while waiting; True ends the wait at once.
        tell: progress for a person.
    """
    try:
        server.turn_unready()
        if ask_all(server.run_dir, "drain"):
            tell(f"not ready any more; running streams may take another {timeout_s:g} s")
        if not _all_end(server, timeout_s, is_hurried):
            tell("ending the streams that are not done")
            ask_all(server.run_dir, "cancel")
            _all_end(server, _CANCEL_TIMEOUT_S, lambda: False)
        time.sleep(_DELIVERY_S)
    except Unavailable as exc:
        tell(f"cannot drain: {exc.message}")


def _all_end(server: TritonProcess, timeout_s: float, is_hurried: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while ask_all(server.run_dir, "status"):
        if time.monotonic() > deadline_s or is_hurried():
            return False
        time.sleep(_POLL_S)
    return True
