# SPDX-License-Identifier: Apache-2.0
"""The state that all connections of gRPC's frontend share."""

import time
from dataclasses import dataclass, field
from typing import Protocol

from serving.frontend.common.byte_budget import ByteBudget
from serving.frontend.common.departures import Departures
from trireme.base.errors import Unavailable


class Watched(Protocol):
    """A connection that is watched for time limits."""

    def tick(self, now_s: float) -> None:
        """End the connection, or streams of it, if they take too long."""

    def close(self) -> None:
        """Close the connection."""


@dataclass
class RelayState:
    """The state that all connections of a process share."""

    departures: Departures
    budget: ByteBudget
    max_request_bytes: int
    max_connections: int
    port: int | None = None  # Triton's port; None: there is no Triton now
    own_models: frozenset[str] = frozenset()  # models that are told when a client leaves
    refusal: Unavailable | None = None  # why no request is taken
    connections: set["Watched"] = field(default_factory=set)

    def tick(self) -> None:
        """End connections and streams that take too long; called once a second."""
        now_s = time.monotonic()
        for connection in list(self.connections):
            connection.tick(now_s)
