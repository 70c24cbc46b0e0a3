# SPDX-License-Identifier: Apache-2.0
"""The choice of a server for a request: the one that has its beginning, unless others have far less to do.

How far is a matter of what a beginning saves. Dynamo's router weighs both in blocks: those that a prompt has still to
compute at a server, plus those that are in use there. A page of metrics tells of requests, not of their blocks, so here
the prompt that a waiting request brings is taken for one of `_TURN_PIECES`.
"""

from collections.abc import Sequence

from gateway.servers.server import Server
from gateway.servers.server_load import Load, engine_of, loads_of

# A server that has had the beginning of a prompt is taken while it has at most so many more requests than the one with
# the fewest: a share of these, and some.
_MORE_SHARE, _MORE_REQUESTS = 0.5, 4
_LEAST_SHARE = 0.5  # of the prompt: a short beginning, such as a system prompt that all have, draws nobody
# One request may wait there for a moment, before its step begins; and one more for so many pieces that are saved.
_TURN_PIECES = 8  # 512 tokens, more or less
# A KV cache that is fuller than this, and than another one by some, has no room for another prompt.
_FULL_KV, _MORE_KV = 0.9, 0.1


def choose(
    servers: Sequence[Server],
    numbers: Sequence[int],
    *,
    model: str = "",
    is_session: bool = False,
    is_told: bool = True,
) -> Server:
    """Return the server for a prompt, of at least one.

    Args:
        numbers: of the prompt, as `numbers_of` returns them.
        model: Triton's name of the model that is asked.
        is_session: whether the first of the numbers is a session's, which is followed by itself.
        is_told: whether servers that tell what they have do so by such numbers.
    """
    loads = dict(zip(servers, loads_of(servers, model), strict=True))
    servers = [server for server in servers if not server.is_full] or servers
    emptiest_kv = min(loads[server].kv_usage for server in servers)
    servers = [server for server in servers if not _is_short_of_kv(loads[server], emptiest_kv)]
    engine = engine_of(model) if is_told else None
    holder = _holder(servers, loads, numbers, engine=engine, is_session=is_session)
    if holder is not None:
        return holder
    # Who waits counts once more: a place in a queue is a worse one than a place in a batch.
    return min(servers, key=lambda server: (loads[server].requests + loads[server].queue, server.turn))


def _is_short_of_kv(load: Load, emptiest: float) -> bool:
    return load.kv_usage >= _FULL_KV and load.kv_usage >= emptiest + _MORE_KV


def _holder(
    servers: Sequence[Server],
    loads: dict[Server, Load],
    numbers: Sequence[int],
    *,
    engine: str | None,
    is_session: bool,
) -> Server | None:
    """Return the server that has a prompt's beginning; None: there is none, or it has too much to do."""
    had = {server: server.prefixes.num_had(numbers, engine=engine, is_session=is_session) for server in servers}
    most = max(had.values())
    if not most:
        return None
    having = [server for server in servers if had[server] == most]
    if not (
        is_session
        or most >= _LEAST_SHARE * len(numbers)
        or any(server.prefixes.has_begun(numbers, engine=engine) for server in having)
    ):
        return None
    most_requests = min(loads[server].requests for server in servers) * (1 + _MORE_SHARE) + _MORE_REQUESTS
    most_queued = min(loads[server].queue for server in servers) + 1 + most / _TURN_PIECES
    fit = [
        server for server in having if loads[server].requests <= most_requests and loads[server].queue <= most_queued
    ]
    return min(fit, key=lambda server: loads[server].requests, default=None)
