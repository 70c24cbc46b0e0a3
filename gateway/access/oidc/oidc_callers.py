# SPDX-License-Identifier: Apache-2.0
"""Callers by their tokens: each token is checked once, and then known until it expires or its key is gone."""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, Self

from ensemble_configs.spec.callers.oidc_spec import OidcSpec
from gateway.access.api_key import bearer_of
from gateway.access.caller import Caller, Callers, not_accepted
from gateway.access.oidc.claims import caller_of
from gateway.access.oidc.key_set import VerificationKey
from gateway.access.oidc.provider_keys import ProviderKeys
from gateway.access.oidc.refusals import expired_token, nobody_knows
from gateway.access.oidc.signed_token import Head, checked_claims, looks_signed, read_head

_MAX_KNOWN = 10_000
_MAX_WAITING = 256  # tokens that wait to be checked; some hundredths of a second


class _Known(NamedTuple):
    """A token that was checked: whose it is, by which key, and until when."""

    caller: Caller
    key: VerificationKey
    expires_at_s: float


class OidcCallers:
    """The callers of a gateway with a provider, inside a `with`.

    One thread checks signatures, one after the other: whoever floods a gateway with tokens fills its queue, and takes
    little from the requests of others.

    Args:
        keys: of the provider; whoever entered them leaves them.
        others: checks what is no token, such as keys; None: nothing else is accepted.
        models: all that are served.
        now_s: seconds since 1970.
    """

    def __init__(
        self,
        spec: OidcSpec,
        keys: ProviderKeys,
        *,
        others: Callers | None,
        models: Collection[str],
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._spec, self._keys, self._others, self._models = spec, keys, others, frozenset(models)
        self._now_s = now_s
        self._known: OrderedDict[bytes, _Known] = OrderedDict()  # by a hash of the token, which nothing keeps
        self._checks: dict[bytes, asyncio.Task[_Known]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokens")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def find(self, authorization: str) -> Caller:
        """Return the caller of a request by its header `Authorization`.

        Raises:
            ApiError: 401: the token is not accepted, or has expired; 403: it lacks a claim; 503: nobody can tell now.
                None of them holds the token.
        """
        token = bearer_of(authorization)
        if token is None or not looks_signed(token):
            if self._others is None:
                raise not_accepted()
            return await self._others.find(authorization)
        name = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        known = self._known.get(name)
        if known is None or not self._keys.is_known(known.key):
            self._known.pop(name, None)
            known = await self._checked(name, token)
        elif self._now_s() >= known.expires_at_s:
            del self._known[name]
            raise expired_token()
        else:
            self._known.move_to_end(name)
        return known.caller

    async def _checked(self, name: bytes, token: str) -> _Known:
        """Return what a token is; all who bring the same one wait for one check."""
        head = read_head(
            token, algorithms=self._spec.algorithms, takes_access_tokens_alone=self._spec.takes_access_tokens_alone
        )
        key = await self._keys.find(head.key_id, head.algorithm)
        if name not in self._checks:
            if len(self._checks) >= _MAX_WAITING:
                raise nobody_knows(f"{_MAX_WAITING} others wait for it")
            self._checks[name] = task = asyncio.create_task(self._check(token, head, key))
            task.add_done_callback(partial(self._note_checked, name))
        return await asyncio.shield(self._checks[name])  # whoever leaves does not end it for the others

    async def _check(self, token: str, head: Head, key: VerificationKey) -> _Known:
        loop = asyncio.get_running_loop()
        claims = await loop.run_in_executor(self._thread, checked_claims, token, head, key, self._spec)
        caller = caller_of(claims, self._spec, models=self._models)
        return _Known(caller, key, int(claims["exp"]) + self._spec.leeway_s)

    def _note_checked(self, name: bytes, task: asyncio.Task[_Known]) -> None:
        del self._checks[name]
        if task.cancelled() or task.exception() is not None:
            return
        self._known[name] = task.result()
        while len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
