# SPDX-License-Identifier: Apache-2.0
"""The servers that compute a release's long prompts, asked on a thread of their own; what fails is computed here."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable

from ensemble_configs.spec.engine.prefill_servers_spec import PrefillServersSpec
from serving.disaggregation.prefill_message import prefill_message
from serving.disaggregation.prefill_server import PREFILL_FAILED
from serving.disaggregation.server_set import ServerSet
from serving.engines.seam.base import GenerationRequest
from serving.requests.prompt_batch import Row
from trireme.base.errors import ServingError, Unavailable

_log = logging.getLogger("trireme.disaggregation")

Then = Callable[[bytes | None], None]
_ENDS_S = 5.0
_QUIET_S = 10.0


class PrefillServers:
    """The prefill servers of one release, for the threads of one process."""

    def __init__(self, spec: PrefillServersSpec, *, release: int, note: Callable[[str], None] = lambda _: None) -> None:
        """Begin the thread; nothing is connected before the first prompt.

        Args:
            spec: of the deployment.
            release: number of the release, which is asked of the servers.
            note: called with the outcome of each prompt that is long enough, one of `PREFILL_OUTCOMES` of
                `serving.telemetry.request_metrics`.
        """
        self._spec, self._release, self._note = spec, release, note
        self._servers = ServerSet(spec)
        self._asked: dict[int, asyncio.Task[None]] = {}
        self._is_closing = False
        self._quiet_until_s = 0.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="prefill-servers", daemon=True)
        self._thread.start()

    def takes(self, request: GenerationRequest) -> bool:
        """Return whether a request's prompt may be computed elsewhere.

        A prompt that is short, a request that goes on with tokens of its own, an answer of one token, and outputs for
        every position of the prompt or of the first token are left to the engine here.
        """
        sampling = request.sampling
        return (
            len(request.input_ids) >= self._spec.min_prompt_tokens
            and request.num_output_ids == 0
            and sampling.beam_width == 1
            and sampling.max_tokens > 1
            and not sampling.is_context_only
            and sampling.context_phase_params is None
            and not (sampling.return_log_probs or sampling.return_context_logits or sampling.return_generation_logits)
        )

    def ask(self, key: int, row: Row, then: Then, *, request_id: str = "") -> None:
        """Ask for a prompt; `then` gets what is handed over, or None: the prompt is to be computed here.

        Args:
            key: key of the request, for `cancel`.
            row: tensors of the prompt.
            then: called once, on the thread of this object.
            request_id: given by the client.
        """
        self._loop.call_soon_threadsafe(self._begin, key, row, then, request_id)

    def cancel(self, key: int) -> None:
        """End what is asked for a request, whose `then` gets None; do nothing for a request that asks nothing."""
        self._loop.call_soon_threadsafe(self._cancel, key)

    def close(self) -> None:
        """End all that is asked, and the thread; no `then` is called any more."""
        ending = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        try:
            ending.result(_ENDS_S)
        except TimeoutError:
            _log.warning("connections to prefill servers have not closed within %g s", _ENDS_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_ENDS_S)

    # On the thread of the event loop.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def _begin(self, key: int, row: Row, then: Then, request_id: str) -> None:
        self._asked[key] = self._loop.create_task(self._compute(key, row, then, request_id))

    def _cancel(self, key: int) -> None:
        task = self._asked.get(key)
        if task is not None:
            task.cancel()

    async def _compute(self, key: int, row: Row, then: Then, request_id: str) -> None:
        found, outcome = None, "cancelled"
        with contextlib.suppress(asyncio.CancelledError):
            try:
                found, outcome = await self._handed_over(row, request_id)
            except Exception:  # of one request, which must not wait for ever; the thread serves all
                outcome = "failed"
                _log.exception("a prefill server could not be asked; the prompt is computed here")
        del self._asked[key]
        if self._is_closing:
            return
        self._note(outcome)
        try:
            then(found)
        except Exception:
            _log.exception("a request could not go on behind its prefill")

    async def _handed_over(self, row: Row, request_id: str) -> tuple[bytes | None, str]:
        """Return what a server hands over, and the outcome; servers are asked until none is left that may answer."""
        message = prefill_message(row, model=self._spec.model, version=str(self._release), request_id=request_id)
        left, outcome = await self._servers.servers(), "busy"
        if not left:
            outcome = "failed"
            self._warn(Unavailable(f"{', '.join(self._spec.urls)}: DNS has no address"), request_id)
        while worth := [server for server in left if server.is_worth_asking]:
            server = min(worth, key=lambda one: one.num_asked)
            left.remove(server)
            try:
                answer = await server.ask(message)
            except ServingError as exc:
                outcome = "failed" if exc.facts.get("reason") == PREFILL_FAILED else "refused"
                self._warn(exc, request_id)
            else:
                return (None, "ended") if answer.has_ended else (answer.phase, "computed")
        return None, outcome

    def _warn(self, exc: ServingError, request_id: str) -> None:
        """Log why a prompt is computed here, not for each prompt of an outage."""
        if time.monotonic() >= self._quiet_until_s:
            self._quiet_until_s = time.monotonic() + _QUIET_S
            _log.warning("a prompt is computed here, for %s", exc.message, extra={"request_id": request_id})

    async def _close(self) -> None:
        self._is_closing = True
        tasks = list(self._asked.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._servers.close()
