# SPDX-License-Identifier: Apache-2.0
"""A client that sends each request where a rollout says, and reports the outcome to the rollout.

It asks for the split every so often. Without an answer for as long as its lease it sends everything to the stable
name, so that a rollout without its controller takes no new requests. A candidate that cannot take a request before its
first text is no failure for the caller: the stable release answers it.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Self

import msgspec

from clients.access import NO_ACCESS, Access, grpc_endpoint
from clients.rollout.routing.observation import Observation
from clients.rollout.routing.rollout_client import RolloutClient, Step
from clients.rollout.routing.schema import Mirror
from clients.rollout.routing.shadow_requests import ShadowRequest, ShadowRequests
from clients.rollout.routing.split import CANDIDATE, STABLE, Slice, slice_at
from clients.stepped_loop import SteppedLoop
from clients.streaming import AsyncTritonClient, GenerateChunk, GenerateRequest
from ensemble_configs.split.outcome import Outcome
from ensemble_configs.split.places import Places, place_of, stratum_of, unit_of
from trireme.base.errors import AccessDenied, RequestCancelled, ServingError, Unavailable


class Ticket(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The destination of a request and what the request counts for.

    JSON, so that a ticket may wait anywhere for the user's opinion.

    Attributes:
        rollout, step: what the request counts for; None: nothing.
        stratum: stratum of the prompt's length.
        unit: pseudonym of the request's key.
        mirror: destination of its shadow request; None: there is none.
    """

    to: Slice
    rollout: int | None = None
    step: int = 0
    stratum: int = 0
    unit: str = ""
    mirror: Mirror | None = None

    @property
    def counts_for(self) -> Step | None:
        """Return the step that the request counts for; None: it is not compared."""
        return None if self.rollout is None else Step(self.rollout, self.step)


class RoutedClient:
    """A client with one connection to each server, for any number of requests at a time.

    Enter it inside a running event loop.

    Args:
        url: ``host:port`` of the gRPC endpoint.
        split_url: address of the rollout API, such as ``http://127.0.0.1:8010``.
        stable_model: model that is asked where nothing is known of a rollout.
        access: certificates and the key for every server. None: none.
        split_access: certificates and the key for a rollout that answers over https. None: those of `access`.

    Raises:
        RequestError: an address is not valid.
        SpecError: a file of `access` or `split_access` cannot be read.
    """

    def __init__(
        self,
        url: str,
        split_url: str,
        *,
        stable_model: str = "ensemble",
        access: Access | None = None,
        split_access: Access | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # What a rollout names besides is asked as the server of the url is: it gets no key without the same TLS.
        self._access = grpc_endpoint(url, access or NO_ACCESS).access
        self._link = RolloutClient(split_url, access=split_access or access or NO_ACCESS, clock=clock)
        self._clients = {"": AsyncTritonClient(url, access=access)}
        self._stable = Slice(upto=1.0, arm=STABLE, model=stable_model)
        self._places = Places()
        self._shadow_requests = ShadowRequests()

    async def __aenter__(self) -> Self:
        await self._link.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._shadow_requests.close()
            await self._link.__aexit__()
        finally:
            for client in self._clients.values():
                await client.close()

    def ticket(self, request: GenerateRequest, *, key: str | None = None) -> Ticket:
        """Return the destination of a request that is sent now.

        Args:
            key: key of the session, user or tenant, which then stays with its release; None: each request by itself.
        """
        answer = self._link.answer
        if answer is None:
            return Ticket(to=self._stable)
        self._stable = Slice(upto=1.0, arm=STABLE, model=answer.stable_model)  # also where nothing more is heard
        stratum = stratum_of(request.num_prompt_chars)
        place = self._places.next(stratum) if key is None else place_of(key, answer.salt)
        to = slice_at(answer.slices, place)
        mirror = answer.mirror if answer.mirror is not None and place < answer.mirror.share else None
        if mirror is not None and not self._shadow_requests.has_room(mirror.max_in_flight):
            return Ticket(to=to)  # only pairs are compared
        return Ticket(
            to=to,
            rollout=answer.rollout if to.is_compared else None,
            step=answer.step,
            stratum=stratum,
            unit="" if key is None else unit_of(key, answer.salt),
            mirror=mirror,
        )

    def feedback(self, ticket: Ticket, *, is_disliked: bool) -> None:
        """Report the user's opinion of a request, at any time after it; the gate compares the arms by it.

        It counts for the step that the rollout has reached; of a rollout that is over it counts for nothing.
        """
        answer = self._link.answer
        if answer is not None and answer.rollout == ticket.rollout:
            said = Outcome(
                arm=ticket.to.arm,
                stratum=ticket.stratum,
                unit=ticket.unit,
                is_disliked=is_disliked,
                is_feedback=True,
            )
            self._link.tell(Step(answer.rollout, answer.step), said)

    async def generate(
        self,
        request: GenerateRequest,
        *,
        key: str | None = None,
        ticket: Ticket | None = None,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[GenerateChunk, None]:
        """Generate on the release that the rollout gives to `key`, and yield chunks.

        Raises what `AsyncTritonClient.generate` raises.

        Args:
            key: key of the session, user or tenant, which stays with its release; None: each request by itself.
            ticket: ticket of this request, where one is needed for `feedback`; None: a new one for `key`.
        """
        ticket = self.ticket(request, key=key) if ticket is None else ticket
        observation = Observation(ticket.to.arm, ticket.stratum, ticket.unit)
        if ticket.rollout is not None:  # what its outcome is made of
            request = msgspec.structs.replace(request, return_num_output_tokens=True, return_finish_reason=True)
        copy = self._shadow_request(ticket, request, timeout_s)
        try:
            async for chunk in self._ask(ticket.to, request, timeout_s):
                observation.add(chunk)
                yield chunk
        except (RequestCancelled, GeneratorExit, asyncio.CancelledError):  # its caller's doing
            if copy is not None:
                copy.drop()
            raise
        except ServingError as exc:
            self._tell(ticket.counts_for, observation.outcome(error=exc.code), copy)
            if not ticket.to.has_fallback or observation.has_begun or not isinstance(exc, Unavailable | AccessDenied):
                raise
        else:
            self._tell(ticket.counts_for, observation.outcome(), copy, observation.text)
            return
        async for chunk in self._ask(self._stable, request, timeout_s):
            yield chunk

    def _ask(self, to: Slice, request: GenerateRequest, timeout_s: float | None) -> AsyncGenerator[GenerateChunk, None]:
        return self._client(to.url).generate(request, model=to.model, release=to.release, timeout_s=timeout_s)

    def _client(self, url: str) -> AsyncTritonClient:
        if url not in self._clients:
            self._clients[url] = AsyncTritonClient(url, access=self._access)
        return self._clients[url]

    def _shadow_request(
        self, ticket: Ticket, request: GenerateRequest, timeout_s: float | None
    ) -> ShadowRequest | None:
        mirror, step = ticket.mirror, ticket.counts_for
        if mirror is None or step is None:
            return None

        def tell(original: Outcome, copied: Outcome) -> None:
            self._link.tell(step, original)
            self._link.tell(step, copied)

        observation = Observation(CANDIDATE, ticket.stratum, ticket.unit)
        copy = ShadowRequest(
            self._client(mirror.url), mirror.model, request, observation, timeout_s=timeout_s, tell=tell
        )
        self._shadow_requests.keep(copy)
        return copy

    def _tell(self, step: Step | None, outcome: Outcome, copy: ShadowRequest | None, text: str = "") -> None:
        if copy is not None:
            copy.compare(outcome, text)
        elif step is not None:
            self._link.tell(step, outcome)


def generate_routed(
    url: str,
    split_url: str,
    request: GenerateRequest,
    *,
    key: str | None,
    access: Access | None = None,
    split_access: Access | None = None,
    timeout_s: float | None = None,
) -> Generator[GenerateChunk, None, None]:
    """Send one request through a `RoutedClient`, for scripts; close the generator to cancel it."""
    with SteppedLoop() as loop:
        client = RoutedClient(url, split_url, access=access, split_access=split_access)
        loop.run(client.__aenter__())
        chunks = client.generate(request, key=key, timeout_s=timeout_s)
        try:
            while (chunk := loop.run(_next(chunks))) is not None:
                yield chunk
        finally:
            loop.run(chunks.aclose())
            loop.run(client.__aexit__())


async def _next(chunks: AsyncGenerator[GenerateChunk, None]) -> GenerateChunk | None:
    return await anext(chunks, None)
