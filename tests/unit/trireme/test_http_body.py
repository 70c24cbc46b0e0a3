# SPDX-License-Identifier: Apache-2.0
"""The body of a request over HTTP gives its bytes back to the budget, however it ends."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from trireme.base.byte_budget import ByteBudget
from trireme.base.http_servers.http_body import body_of

LARGE = 2 << 20  # smaller ones are taken at any time


class Writer:
    """The way to a caller, who may have gone."""

    output_size = 0

    def __init__(self, *, is_gone: bool) -> None:
        self._is_gone = is_gone

    async def write(self, _: bytes) -> None:
        if self._is_gone:
            raise ConnectionResetError


class Content:
    """A body that comes in one piece."""

    async def iter_chunked(self, _: int) -> AsyncIterator[bytes]:
        yield b"x" * LARGE


class Request:
    """Hold what the reader of a body looks at of a request."""

    content_length = LARGE
    content = Content()

    def __init__(self, *, is_gone: bool = False) -> None:
        self.headers = {"Expect": "100-continue"}
        self.writer = Writer(is_gone=is_gone)


async def read(request: Any, budget: ByteBudget, *, then: Exception | None = None) -> bytes:
    async with body_of(request, max_bytes=LARGE, budget=budget) as body:
        if then is not None:
            raise then
    return body


def test_a_body_that_was_read_is_given_back() -> None:
    budget = ByteBudget(LARGE)
    for _ in range(2):
        assert len(asyncio.run(read(Request(), budget))) == LARGE


@pytest.mark.parametrize(
    ("request_", "then", "error"),
    [
        (Request(is_gone=True), None, ConnectionResetError),
        (Request(), TimeoutError("of what is done with the body"), TimeoutError),
    ],
    ids=["the caller has gone", "what comes after takes too long"],
)
def test_what_fails_is_given_back_and_told_as_it_is(
    request_: Any, then: Exception | None, error: type[Exception]
) -> None:
    budget = ByteBudget(LARGE)
    with pytest.raises(error):
        asyncio.run(read(request_, budget, then=then))
    budget.take(LARGE)
