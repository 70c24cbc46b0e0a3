# SPDX-License-Identifier: Apache-2.0
"""The choice of a server for a request: the one that has its beginning, unless others have far less to do."""

from collections.abc import Sequence

from gateway.servers.server import Server

# A server that has had the beginning of a prompt is taken while it has at most so many more running requests than the
# one with the fewest: a share of these, and some.
_MORE_SHARE, _MORE_REQUESTS = 0.5, 4
_LEAST_SHARE = 0.5  # of the prompt: a short beginning, such as a system prompt that all have, draws nobody


def choose(servers: Sequence[Server], numbers: Sequence[int], *, is_session: bool = False) -> Server:
    """Return the server for a prompt, of at least one.

    Args:
        numbers: of the prompt, as `numbers_of` returns them.
        is_session: whether the first of them is a session's, which is followed by itself.
    """
    servers = [server for server in servers if not server.is_full] or servers
    fewest = min(server.num_running for server in servers)
    had = {server.url: server.prefixes.num_had(numbers) for server in servers}
    most = max(had.values())
    if most:
        having = [server for server in servers if had[server.url] == most]
        is_known = is_session or any(server.prefixes.has_begun(numbers) for server in having)
        bound = fewest * (1 + _MORE_SHARE) + _MORE_REQUESTS
        fit = [server for server in having if server.num_running <= bound]
        if fit and (is_known or most >= _LEAST_SHARE * len(numbers)):
            return min(fit, key=lambda server: server.num_running)
    return min(servers, key=lambda server: (server.num_running, server.turn))
