# SPDX-License-Identifier: Apache-2.0
"""A watch that ends a stub with its server: Triton's own check misses a stub that waits for the server for ever.

Some of Triton's calls wait for that answer and keep the interpreter's lock, so that no thread of Python runs any more
(setting a metric does, in 2.51). The second watch is a thread of faulthandler's, which needs no lock.
"""

import faulthandler
import os
import signal
import threading
import time
from pathlib import Path

_PERIOD_S = 1.0
_STUCK_S = 15.0  # longer than the silence after which `trireme serve` takes a stub for hung


def end_with_server() -> None:
    """Have this process killed when its parent is gone, if it is a stub."""
    if is_stub():
        threading.Thread(target=_watch, args=(os.getppid(),), name="orphan-watch", daemon=True).start()


def is_stub() -> bool:
    """Return whether the parent of this process is a `tritonserver`."""
    return Path(f"/proc/{os.getppid()}/comm").read_text(encoding="utf-8").strip() == "tritonserver"


def _watch(server: int) -> None:
    while os.getppid() == server:
        faulthandler.dump_traceback_later(_STUCK_S, exit=True)  # put off again and again, as long as Python runs
        time.sleep(_PERIOD_S)
    os.kill(os.getpid(), signal.SIGKILL)
