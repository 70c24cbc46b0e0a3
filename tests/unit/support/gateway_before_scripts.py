# SPDX-License-Identifier: Apache-2.0
"""A gateway before several scripted servers, and what they were asked."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from kserve_server import KServeServer
from running_gateway import RunningGateway


@contextlib.contextmanager
def gateway_of(*scripts: list[Any], **fields: Any) -> Iterator[tuple[RunningGateway, list[KServeServer]]]:
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(KServeServer(*script)) for script in scripts]
        gateway = stack.enter_context(RunningGateway(*(server.url for server in servers), **fields))
        wait_until(lambda: gateway.call("GET", "/health/ready").status == 200)
        yield gateway, servers


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not is_true():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def counts(servers: list[KServeServer]) -> list[int]:
    return [len(server.requests) for server in servers]
