# SPDX-License-Identifier: Apache-2.0
"""The work of Triton's stub for its first request that can be done before.

The stub imports asyncio, to see whether a model's `execute` is a coroutine.
"""

import importlib


def import_for_first_request() -> None:
    """Import asyncio now: 10 to 25 ms that a client would wait for, once in each stub on the way of its request."""
    importlib.import_module("asyncio")
