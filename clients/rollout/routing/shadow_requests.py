# SPDX-License-Identifier: Apache-2.0
"""Copies of requests for a release in the shadow: their answers go to nobody, and no user waits for one.

A copy begins with its request and is read by a task of its own. At most so many run as the rollout allows; a request
beyond that has none, and is not compared. A copy that takes long is given up, and counts as an error of the candidate.
"""

import asyncio
import contextlib
from collections.abc import Callable

from clients.rollout.routing.agreement import agreement
from clients.rollout.routing.observation import Seen
from clients.rollout_gate.outcome import Outcome
from clients.streaming import AsyncTritonClient, GenerateRequest
from trireme.base.errors import ServingError

_LONGEST_S = 60.0  # without a limit of the request's own


class Copy:
    """One, which runs from its construction on.

    Args:
        tell: is given both outcomes once both have ended.
    """

    def __init__(
        self,
        client: AsyncTritonClient,
        model: str,
        request: GenerateRequest,
        seen: Seen,
        *,
        timeout_s: float | None,
        tell: Callable[[Outcome, Outcome], None],
    ) -> None:
        self._request = request
        self._seen = seen
        self._tell = tell
        self._original: asyncio.Future[tuple[Outcome, str]] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._run(client, model, min(timeout_s or _LONGEST_S, _LONGEST_S)))

    def compare(self, original: Outcome, text: str) -> None:
        """The request has ended."""
        self._original.set_result((original, text))

    def drop(self) -> None:
        """Its caller went away: there is nothing to compare."""
        self.task.cancel()

    async def _run(self, client: AsyncTritonClient, model: str, timeout_s: float) -> None:
        error = ""
        try:
            async with contextlib.aclosing(client.generate(self._request, model=model, timeout_s=timeout_s)) as chunks:
                async for chunk in chunks:
                    self._seen.add(chunk)
        except ServingError as exc:
            error = exc.code
        outcome, text = await self._original
        alike = None
        if _is_greedy(self._request) and not error and not outcome.error:
            alike = agreement(text, self._seen.text)
        self._tell(outcome, self._seen.outcome(error=error, agreement=alike))


class Copies:
    """Those of one client that run."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def has_room(self, max_in_flight: int) -> bool:
        """For one more."""
        return len(self._running) < max_in_flight

    def keep(self, copy: Copy) -> None:
        """Until it ends."""
        self._running.add(copy.task)
        copy.task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """End them."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _is_greedy(request: GenerateRequest) -> bool:
    """Of texts that are drawn by lot no two need agree."""
    return request.top_k == 1 or (request.top_k is None and request.top_p is None)
