# SPDX-License-Identifier: Apache-2.0
"""Exceptions that end threads of a library, told to the caller that waits in vain for what the thread was to do."""

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def thread_failures(tell: Callable[[Exception], object]) -> Iterator[None]:
    """Call `tell`, while in this context, with what ends a thread of this process, beside what is done anyway."""
    usual = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        usual(args)
        if isinstance(args.exc_value, Exception):
            tell(args.exc_value)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = usual
