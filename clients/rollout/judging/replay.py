# SPDX-License-Identifier: Apache-2.0
"""The replay of held-out prompts: it asks both releases, greedily and few at a time, and scores their answers.

The verdict on the scores is `clients.rollout.judging.trial`'s.
"""

import asyncio
import random
import time
from collections.abc import Generator, Sequence
from typing import NamedTuple

import msgspec

from clients.access import NO_ACCESS, Access
from clients.batch.retry_policy import FailureKind, Pauses, failure_kind_of
from clients.rollout.judging.text_similarity import similarity
from clients.rollout.records.held_out import Prompt
from clients.rollout.routing.split import BASELINE, CANDIDATE
from clients.stepped_loop import SteppedLoop
from clients.streaming import AsyncTritonClient, GenerateRequest
from ensemble_configs.split.outcome import Outcome
from trireme.base.errors import ServingError, Unavailable

_LOOK_S = 0.5
_ANSWER_S = 120.0  # more is no answer
_ROOM_S = 60.0  # a server that has no room for a prompt for so long has none for a replay
_GONE = {"unreachable", "connection_lost", "draining", "shutdown", "stopping"}  # both releases at once: nobody's fault

Answer = str | ServingError


class PromptScores(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of one prompt, without any text.

    Attributes:
        candidate: 0 to 1; None: there is nothing to compare, and `stable` is None too.
        candidate_error: its code and what it is about; "": the candidate has answered.
    """

    name: str
    candidate: float | None = None
    stable: float | None = None
    candidate_error: str = ""
    stable_error: str = ""

    def outcomes(self) -> tuple[Outcome, ...]:
        """Return both outcomes for the gate; none where nothing was compared."""
        if self.candidate is None or self.stable is None:
            return ()
        return (
            Outcome(arm=BASELINE, prompt=self.name, score=self.stable, error=self.stable_error),
            Outcome(arm=CANDIDATE, prompt=self.name, score=self.candidate, error=self.candidate_error),
        )


def scores_of(prompt: Prompt, stable: Answer, again: Answer | None, candidate: Answer) -> PromptScores:
    """Return the scores of the answers to one prompt; an error scores 0 where there is something to compare.

    With a reference each answer is compared with it. Without one the candidate's answer and the stable release's second
    one are compared with the stable release's first one, so that a model which does not repeat itself is not blamed on
    the candidate.

    Args:
        again: the stable release's second answer; None with a reference.
    """
    right: Answer = stable if prompt.reference is None else prompt.reference
    own = stable if again is None else again
    is_compared = not isinstance(right, ServingError) and not (_error(own) and _error(candidate))
    return PromptScores(
        name=prompt.name,
        candidate=_score(candidate, right) if is_compared else None,
        stable=_score(own, right) if is_compared else None,
        candidate_error=_error(candidate),
        stable_error=_error(stable) or _error(own),
    )


def _score(answer: Answer, right: Answer) -> float:
    return 0.0 if isinstance(answer, ServingError) or isinstance(right, ServingError) else similarity(answer, right)


def _error(answer: Answer) -> str:
    if not isinstance(answer, ServingError):
        return ""
    about = answer.facts.get("field") or answer.facts.get("reason")
    return answer.code if about is None else f"{answer.code} {about}"  # a message may hold a prompt's words


class Target(NamedTuple):
    """A model of a server that answers for a release.

    `release` is the release that requests name; None: requests name none.
    """

    url: str
    model: str
    release: int | None = None
    access: Access = NO_ACCESS

    @property
    def name(self) -> str:
        """Return the target's name for people."""
        return self.model if self.release is None else f"release {self.release} by {self.model}"


def replay(
    prompts: Sequence[Prompt], *, stable: Target, candidate: Target, num_at_a_time: int
) -> Generator[list[PromptScores], None, None]:
    """Yield scores as they come, some or none every half a second; close the generator to cancel what runs.

    Args:
        num_at_a_time: requests in flight, to both together.

    Raises:
        Unavailable: the server went away, has no room, or its stable release does not answer at all.
    """
    with SteppedLoop() as loop:
        asked = loop.run(_begun(prompts, stable, candidate, num_at_a_time))
        try:
            while asked.is_going_on:
                yield loop.run(asked.next_ones())
        finally:
            loop.run(asked.close())


async def _begun(prompts: Sequence[Prompt], stable: Target, candidate: Target, num_at_a_time: int) -> "_Replay":
    return _Replay(prompts, stable=stable, candidate=candidate, num_at_a_time=num_at_a_time)


class _Replay:
    """The workers of a replay; each takes one prompt after the other, while `next_ones` is awaited."""

    def __init__(self, prompts: Sequence[Prompt], *, stable: Target, candidate: Target, num_at_a_time: int) -> None:
        self._clients = {
            target.url: AsyncTritonClient(target.url, access=target.access) for target in (stable, candidate)
        }
        self._prompts = iter(prompts)
        self._stable, self._candidate = stable, candidate
        self._scored: list[PromptScores] = []
        self._workers = {asyncio.create_task(self._work()) for _ in range(min(num_at_a_time, len(prompts)))}

    @property
    def is_going_on(self) -> bool:
        return bool(self._workers)

    async def next_ones(self) -> list[PromptScores]:
        done, self._workers = await asyncio.wait(self._workers, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        failures = [failure for failure in [worker.exception() for worker in done] if failure is not None]
        if failures:  # several, where the server goes
            raise failures[0]
        found, self._scored = self._scored, []
        return found

    async def close(self) -> None:
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        for client in self._clients.values():
            await client.close()

    async def _work(self) -> None:
        for prompt in self._prompts:
            stable = await self._answer(prompt, self._stable)
            again = await self._answer(prompt, self._stable) if prompt.reference is None else None
            candidate = await self._answer(prompt, self._candidate)
            self._scored.append(scores_of(prompt, stable, again, candidate))

    async def _answer(self, prompt: Prompt, target: Target) -> Answer:
        """Return a model's answer, or the error that it failed with; ask again while the server has no room."""
        pauses, until_s = Pauses(random.Random()), time.monotonic() + _ROOM_S
        while True:
            sent_s = time.monotonic()
            try:
                return await self._text(prompt, target)
            except ServingError as exc:
                kind = failure_kind_of(exc)
                if exc.facts.get("reason") in _GONE or (kind is FailureKind.AWAY and target == self._stable):
                    raise Unavailable(exc.message, reason=exc.facts.get("reason")) from exc
                if kind is not FailureKind.BUSY:
                    return exc
                if time.monotonic() > until_s:
                    raise Unavailable(
                        f"{target.name} has had no room for a held-out prompt for {_ROOM_S:g} s: {exc.message}",
                        reason="no_room",
                    ) from exc
                await asyncio.sleep(pauses.after(exc, sent_s=sent_s, now_s=time.monotonic()))

    async def _text(self, prompt: Prompt, target: Target) -> str:
        request = GenerateRequest(
            text_input=prompt.text,
            max_tokens=prompt.max_tokens,
            top_k=1,  # greedy, at whatever temperature
            exclude_input_in_output=True,
        )
        client = self._clients[target.url]
        chunks = client.generate(request, model=target.model, release=target.release, timeout_s=_ANSWER_S)
        return "".join([chunk.text async for chunk in chunks])
