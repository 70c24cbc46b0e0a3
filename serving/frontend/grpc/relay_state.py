# SPDX-License-Identifier: Apache-2.0
"""What all connections of gRPC's frontend share."""

import time
from dataclasses import dataclass, field
from typing import Protocol

from serving.frontend.common.byte_budget import ByteBudget
from serving.frontend.common.departures import Departures
from trireme.base.errors import Unavailable


class Watched(Protocol):
    """A connection."""

    def tick(self, now_s: float) -> None:
        """End what takes too long."""

    def close(self) -> None:
        """Hang up."""


@dataclass
class RelayState:
    """What all connections of a process share."""

    departures: Departures
    budget: ByteBudget
    max_request_bytes: int
    max_connections: int
    port: int | None = None  # Triton's; None: there is none now
    own_models: frozenset[str] = frozenset()  # which are told when a client leaves
    refusal: Unavailable | None = None  # why no request is taken
    connections: set["Watched"] = field(default_factory=set)

    def tick(self) -> None:
        """End what takes too long; called once a second."""
        now_s = time.monotonic()
        for connection in list(self.connections):
            connection.tick(now_s)
