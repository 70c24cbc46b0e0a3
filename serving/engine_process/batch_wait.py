# SPDX-License-Identifier: Apache-2.0
"""The wait of an idle engine for company: requests that arrive together share a prefill.

Without the wait the first of four requests has a prefill of its own, and the other three wait for its end.
"""

import time
from collections.abc import Callable

_MOST = 4  # waits in a row: who keeps coming must not hold up the first one for ever


def wait_for_company(take: Callable[[float], bool], wait_s: float) -> None:
    """Take the requests that arrive in short succession after a first one.

    Args:
        take: waits up to so many seconds for requests, takes them, and returns whether there were some.
        wait_s: seconds that the newest request waits for another one; 0: none waits.
    """
    end_s = time.monotonic() + _MOST * wait_s
    left_s = wait_s
    while left_s > 0 and take(left_s):
        left_s = min(wait_s, end_s - time.monotonic())
