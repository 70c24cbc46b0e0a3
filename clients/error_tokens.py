# SPDX-License-Identifier: Apache-2.0
"""The one parser of error texts: what came over the wire, as a typed exception of `trireme.base.errors`.

Our own errors carry a token (`trireme.base.errors.parse_token`); Triton's and gRPC's are told by their words.
"""

import re
from typing import NamedTuple

from clients.access import redacted
from trireme.base.errors import (
    QueueFull,
    RequestCancelled,
    RequestError,
    RequestTimeout,
    ServerError,
    ServingError,
    Unavailable,
    parse_token,
)

# What others put in front: gRPC's status (ours, in `clients.streaming`), an ensemble's name, Triton's request id.
_PREFIX = re.compile(r"(?:\[StatusCode\.\w+\] |in ensemble '[^']*', |\[request id: [^\]]*\] )+")


class _KnownText(NamedTuple):
    """A text of Triton or gRPC; named groups of the pattern become facts, and may be used in the message."""

    pattern: re.Pattern[str]
    error: type[ServingError]
    message: str = "{text}"
    facts: dict[str, str] = {}  # noqa: RUF012  a default that nobody changes


def _known(pattern: str, error: type[ServingError], message: str = "{text}", **facts: str) -> _KnownText:
    return _KnownText(re.compile(pattern), error, message, facts)


# The first that matches wins. Seen with Triton 2.51 and grpcio 1.85; those marked are only read in Triton's source.
_KNOWN_TEXTS = (
    _known(
        r"failed to connect to all addresses|Connection refused|errors resolving|DNS resolution failed",
        Unavailable,
        "no Triton answers on the gRPC address {address}; is the server running? start it with `make serve`",
        reason="unreachable",
    ),
    _known(
        r"model: '(?P<model>[^']*)'.* (?:has no available versions|is not at ready state)",
        Unavailable,
        "{text}; it is being loaded or unloaded",
        reason="not_loaded",
    ),
    _known(
        r"Request for unknown model ?: '(?P<value>[^']*)'",
        RequestError,
        "{text}; name a model and a version that the server has loaded",
        field="model",
    ),
    _known(r"failed to get model version from .* string '(?P<value>[^']*)'", RequestError, field="model_version"),
    _known(r"unexpected inference (?:in|out)put '(?P<field>[^']*)'", RequestError),
    _known(r"inference input '(?P<field>[^']*)' data-type is", RequestError),
    _known(r"(?:unexpected shape|byte size mismatch) for input '(?P<field>[^']*)'", RequestError),
    _known(r"missing required input\(s\) \['(?P<field>[^']*)'", RequestError),
    _known(r"data-type is|unexpected shape|missing required input|unexpected inference input", RequestError),
    _known(
        r"is not healthy",
        Unavailable,
        "{text} `trireme serve` starts the server again, so try again in some seconds; start a plain tritonserver anew",
        reason="engine_dead",
    ),
    _known(
        # core dynamic_batch_scheduler.cc; since 2.58 the gRPC front end, too, for a new request on an open stream
        r"Server is stopping|server is shutting down and has stopped accepting",
        Unavailable,
        reason="stopping",
    ),
    _known(r"Exceeds maximum queue size", QueueFull, reason="queue_full"),  # core scheduler_utils.cc
    _known(r"Request timeout expired", RequestTimeout),  # core; "Request timeout " is in the binary of 2.51
    _known(r"StatusCode\.DEADLINE_EXCEEDED", RequestTimeout, "the request was not done within its timeout"),
    _known(r"StatusCode\.CANCELLED", RequestCancelled),
    _known(
        # grpc.aio's words for a request that could not be written any more, and for a stream that a proxy ended as its
        # server had died.
        r"StatusCode\.UNAVAILABLE|StatusCode\.INTERNAL\] (?:Internal error from Core|.*RST_STREAM)",
        Unavailable,
        "the connection to {address} was lost: {text}",
        reason="connection_lost",
    ),
    _known(r"StatusCode\.(?:INVALID_ARGUMENT|NOT_FOUND)", RequestError),
)


def parse_error(text: str, *, address: str | None = None) -> ServingError:
    """Return the typed exception that an error text stands for; it is not raised. Never fails.

    Our token is found wherever it stands; what follows it is the message. Text without one is told by its words, and
    is a `ServerError` where they are not known.

    Args:
        address: the server that was called, for messages about the connection; found in the text where not given.
    """
    text = redacted(text)
    return parse_token(text) or _from_known_text(text, address)


def _from_known_text(text: str, address: str | None) -> ServingError:
    plain = _PREFIX.sub("", text, count=1).strip() or "the server gave no reason"
    for known in _KNOWN_TEXTS:
        match = known.pattern.search(text)
        if match:
            found = match.groupdict()
            where = address or _address_in(text)
            facts = {**known.facts, **found, **({"address": where} if "{address}" in known.message else {})}
            return known.error(known.message.format(text=plain, address=where, **found), **facts)
    return ServerError(plain)


def _address_in(text: str) -> str:
    found = re.search(r"(?:ipv[46]:|resolving )(\S+):\s", text)
    return found[1].replace("%5B", "[").replace("%5D", "]") if found else "it was called at"
