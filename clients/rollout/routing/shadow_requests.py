# SPDX-License-Identifier: Apache-2.0
"""Shadow requests: copies of requests for a release in the shadow; nobody sees their answers or waits for one.

A shadow request begins with its request and is read by a task of its own. At most so many run as the rollout allows; a
request beyond that has none, and is not compared. One that takes long is given up, and counts as an error of the
candidate.
"""

import asyncio
import contextlib
from collections.abc import Callable

from clients.rollout.routing.agreement import agreement
from clients.rollout.routing.observation import Observation
from clients.streaming import AsyncTritonClient, GenerateRequest
from ensemble_configs.split.outcome import Outcome
from trireme.base.errors import ServingError

_LONGEST_S = 60.0  # without a limit of the request's own


class ShadowRequest:
    """A shadow request, which runs from its construction on.

    Args:
        tell: called with both outcomes once both requests have ended.
    """

    def __init__(
        self,
        client: AsyncTritonClient,
        model: str,
        request: GenerateRequest,
        observation: Observation,
        *,
        timeout_s: float | None,
        tell: Callable[[Outcome, Outcome], None],
    ) -> None:
        self._request = request
        self._observation = observation
        self._tell = tell
        self._original: asyncio.Future[tuple[Outcome, str]] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._run(client, model, min(timeout_s or _LONGEST_S, _LONGEST_S)))

    def compare(self, original: Outcome, text: str) -> None:
        """Give the outcome and text of the user's request, which has ended."""
        self._original.set_result((original, text))

    def drop(self) -> None:
        """Cancel the shadow request: the caller went away, and there is nothing to compare."""
        self.task.cancel()

    async def _run(self, client: AsyncTritonClient, model: str, timeout_s: float) -> None:
        error = ""
        try:
            async with contextlib.aclosing(client.generate(self._request, model=model, timeout_s=timeout_s)) as chunks:
                async for chunk in chunks:
                    self._observation.add(chunk)
        except ServingError as exc:
            error = exc.code
        outcome, text = await self._original
        alike = None
        if _is_greedy(self._request) and not error and not outcome.error:
            alike = agreement(text, self._observation.text)
        self._tell(outcome, self._observation.outcome(error=error, agreement=alike))


class ShadowRequests:
    """The shadow requests of one client that run."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def has_room(self, max_in_flight: int) -> bool:
        """Return whether one more may run."""
        return len(self._running) < max_in_flight

    def keep(self, copy: ShadowRequest) -> None:
        """Hold a shadow request until it ends."""
        self._running.add(copy.task)
        copy.task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """Cancel all shadow requests and wait for their ends."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _is_greedy(request: GenerateRequest) -> bool:
    """Return whether a request is greedy: two sampled texts need not agree."""
    return request.top_k == 1 or (request.top_k is None and request.top_p is None)
