# SPDX-License-Identifier: Apache-2.0
"""The operations that callers of the control API have asked for, each in a thread of its own.

What was begun is done to its end, whether or not its caller stays. A caller that asks for what is being done already,
as one does whose connection was lost, is told of that one's end.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Mapping

import msgspec

from trireme.base.errors import ServingError, Unavailable
from trireme.base.unix_rpc import Handler, Message, Say

_log = logging.getLogger("trireme.control_api")

MOST_RUNNING = 16  # a controller has three at a time
_MAX_CHARS = 1 << 16  # of a text; a longer one is cut


class Line(msgspec.Struct, frozen=True):
    """A line of an answer, as JSON; the last one of an operation ends it, or an empty one if its end is not known."""

    data: bytes
    is_last: bool = False


class RunningOperations:
    """The operations that run now; its methods are for one event loop, and their threads tell it what happens.

    Args:
        handlers: by operation, as of `trireme.base.unix_rpc`.
        most: number that may run at a time.
    """

    def __init__(self, handlers: Mapping[str, Handler], *, most: int = MOST_RUNNING) -> None:
        self._handlers = handlers
        self._most = most
        self._callers: dict[bytes, set[asyncio.Queue[Line]]] = {}  # by operation and question

    def follow(self, operation: str, question: Message) -> asyncio.Queue[Line]:
        """Return the lines of an operation to come; it is begun, unless it runs with the same question already.

        Raises:
            Unavailable: too many run.
        """
        key = msgspec.json.encode([operation, question], order="deterministic")
        lines = asyncio.Queue[Line]()
        if key in self._callers:
            lines.put_nowait(_said("this is being done already"))
        elif len(self._callers) >= self._most:
            raise Unavailable(
                f"{len(self._callers)} operations run, and no more may at a time; try again when one of them is done",
                reason="busy",
                retry_after_ms=1000,
            )
        else:
            self._begin(key, operation, question)
        self._callers[key].add(lines)
        return lines

    def leave(self, lines: asyncio.Queue[Line]) -> None:
        """Tell a caller that has gone nothing more."""
        for callers in self._callers.values():
            callers.discard(lines)

    def end(self) -> None:
        """Send all callers away, without the end of their operations, which go on."""
        for callers in self._callers.values():
            for lines in callers:
                lines.put_nowait(Line(b"", is_last=True))
            callers.clear()

    def _begin(self, key: bytes, operation: str, question: Message) -> None:
        loop = asyncio.get_running_loop()

        def tell(line: Line) -> None:
            with contextlib.suppress(RuntimeError):  # the server ends, and nobody listens any more
                loop.call_soon_threadsafe(self._tell, key, line)

        def run() -> None:
            tell(_end_of(self._handlers[operation], operation, question, lambda text: tell(_said(text))))

        self._callers[key] = set()
        try:
            # Such a thread holds nobody up: neither the loop, nor the server's end.
            threading.Thread(target=run, name=f"control {operation}", daemon=True).start()
        except RuntimeError as exc:  # the system has no more
            del self._callers[key]
            raise Unavailable(f"the server has no thread for {operation} now", reason="busy") from exc

    def _tell(self, key: bytes, line: Line) -> None:
        callers = self._callers.pop(key, set()) if line.is_last else self._callers.get(key, set())
        for lines in callers:
            lines.put_nowait(line)


def _end_of(handler: Handler, operation: str, question: Message, say: Say) -> Line:
    try:
        # Encoded here, so that what cannot be is an error as any other.
        return Line(msgspec.json.encode({"done": dict(handler(question, say))}), is_last=True)
    except ServingError as exc:
        text = str(exc)
    except Exception as exc:
        _log.exception("a call of %s could not be answered", operation)
        text = f"[INTERNAL] {exc!r}; the server's log says more"
    return Line(msgspec.json.encode({"error": text[:_MAX_CHARS]}), is_last=True)


def _said(text: str) -> Line:
    return Line(msgspec.json.encode({"say": text[:_MAX_CHARS]}))
