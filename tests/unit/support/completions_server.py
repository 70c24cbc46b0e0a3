# SPDX-License-Identifier: Apache-2.0
"""A small real HTTP server that plays a script to every request of OpenAI's `/completions`, write by write."""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Self

CUT = object()  # close the connection without the body's end
HANG = object()  # send nothing more, until the server is closed

# Bytes of the body, written at once; a pause in seconds; CUT; HANG; or a status, with which the answer begins (200).
Step = Any


class Status(NamedTuple):
    """The first step of an answer that is not 200 and a stream."""

    code: int
    body: bytes = b""
    headers: tuple[str, ...] = ()


class Asked(NamedTuple):
    """A request, and the times at which its answer was sent, on the monotonic clock."""

    path: str
    headers: dict[str, str]
    body: Any
    connection: int
    sent_ns: list[int]


def event(text: str | None, *, usage: tuple[int, int] | None = None, finish_reason: str | None = None) -> bytes:
    """Return one event of a stream.

    Args:
        text: None: no choices.
        usage: prompt and completion tokens up to here.
    """
    said: dict[str, Any] = {
        "object": "text_completion",
        "choices": [] if text is None else [{"index": 0, "text": text, "finish_reason": finish_reason}],
    }
    if usage is not None:
        said["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    return f"data: {json.dumps(said)}\n\n".encode()


DONE = b"data: [DONE]\n\n"


class CompletionsServer:
    """A server on a free port that runs inside a `with`.

    Args:
        script: the steps of every answer, or what makes them of the request.
        takes_counts: `continuous_usage_stats` is allowed; otherwise such a request is refused, as OpenAI does.
        keeps: connections; otherwise one that is used again is found to be closed, as with llama.cpp.

    Attributes:
        asked: every request but those for one token, which a client makes to find out whether the server is there.
    """

    def __init__(
        self, *script: Step | Callable[[Asked], list[Step]], takes_counts: bool = False, keeps: bool = True
    ) -> None:
        self.script = script
        self.takes_counts = takes_counts
        self.keeps = keeps
        self.asked: list[Asked] = []
        self.probes: list[Asked] = []
        self.url = ""
        self._num_connections = 0
        self._loop = asyncio.new_event_loop()
        self._is_over = asyncio.Event()
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_up.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join(10)
        self._loop.close()

    async def _serve(self) -> None:
        tasks: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._num_connections += 1
            task = asyncio.ensure_future(self._talk(reader, writer, self._num_connections))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        self._is_up.set()
        await self._is_over.wait()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> None:
        try:
            while (asked := await _read(reader, connection)) is not None:
                if not await self._answer(asked, writer) or (not self.keeps and await reader.read(1)):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, asked: Asked, writer: asyncio.StreamWriter) -> bool:
        """Answer a request, and return whether the connection stays."""
        is_probe = asked.body["max_tokens"] == 1
        (self.probes if is_probe else self.asked).append(asked)
        steps: list[Step] = []
        if asked.body["stream_options"].get("continuous_usage_stats") and not self.takes_counts:
            steps = [Status(400, b'{"error": {"message": "Unknown parameter: continuous_usage_stats"}}')]
        elif is_probe and not (self.script and isinstance(self.script[0], Status)):
            steps = [event("x"), DONE]
        else:
            for step in self.script:
                steps += step(asked) if callable(step) else [step]
        if steps and isinstance(steps[0], Status):
            status = steps[0]
            lines = [f"HTTP/1.1 {status.code} X", f"Content-Length: {len(status.body)}", *status.headers]
            writer.write("\r\n".join([*lines, "", ""]).encode() + status.body)
            await writer.drain()
            return True
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for step in steps:
            if isinstance(step, float):
                await asyncio.sleep(step)
            elif step is CUT:
                return False
            elif step is HANG:
                await self._is_over.wait()
            else:
                asked.sent_ns.append(time.monotonic_ns())
                writer.write(f"{len(step):x}\r\n".encode() + step + b"\r\n")
                await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


async def _read(reader: asyncio.StreamReader, connection: int) -> Asked | None:
    if not (first := await reader.readline()):
        return None
    headers: dict[str, str] = {}
    while line := (await reader.readline()).strip():
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))))
    return Asked(first.decode().split()[1], headers, body, connection, [])
