# SPDX-License-Identifier: Apache-2.0
"""The budget that an engine shares with others on its device: taken before a start, released at the request's end."""

from collections.abc import Mapping

import msgspec

from ensemble_configs.spec.shared_budget_spec import SharedBudgetSpec
from serving.engines.seam.clock import Clock
from serving.shared_budget.shared_ledger import SharedLedger
from trireme.base.errors import RequestError

POLL_S = 0.002  # seconds between looks of an idle engine: nothing tells it that others have released

_FIRST_GUESS_S = 0.01  # too short rather than too long: the next member begins where those that run are
_NEW_PART = 0.1  # weight of the newest sample in the mean of the times


class _Held(msgspec.Struct):
    amounts: Mapping[str, int]
    part: float  # part of the device: the largest of any resource
    since_s: float
    expected_s: float


class SharedRoom:
    """The shared budget from the ledger of a server, asked for each start and told of each end.

    A request's work is its part of the device times the time for which it has it: so the parts of the device that
    models hold, over time, are in proportion to their weights while all want more. When a request starts, its time is
    taken to be the mean of earlier ones; when it ends, the ledger is told what it was.
    """

    def __init__(self, ledger: SharedLedger, spec: SharedBudgetSpec, clock: Clock, *, block_tokens: int) -> None:
        """Take the resources from the spec; `block_tokens`: tokens in a KV block of the engine."""
        self._ledger = ledger
        self._resources = spec.resources
        self._clock = clock
        self._block_tokens = block_tokens
        self._held: dict[int, _Held] = {}
        self._mean_s: float | None = None

    def refuse_never_fitting(self, num_tokens: int) -> None:
        """Check that a request of `num_tokens` tokens fits while nobody holds anything.

        Raises:
            RequestError: the request takes more of a resource than there is.
        """
        amounts = self._amounts(num_tokens)
        for resource in self._resources:
            if amounts[resource.name] > resource.count:
                raise RequestError(
                    f"a request of {num_tokens} tokens takes {amounts[resource.name]} of {resource.name}, of which "
                    f"there are {resource.count} for all models; ask for less",
                    field="max_tokens",
                    value=num_tokens,
                )

    def take(self, key: int, num_tokens: int, *, num_waiting: int) -> bool:
        """Hold what a request takes; return False if others hold it or are next, by the ledger's fair order.

        Args:
            key: of the request.
            num_tokens: most tokens that the request may have.
            num_waiting: requests that would start now, this one included.
        """
        amounts = self._amounts(num_tokens)
        part = max(amounts[resource.name] / resource.count for resource in self._resources)
        expected_s = _FIRST_GUESS_S if self._mean_s is None else self._mean_s
        if not self._ledger.try_acquire(amounts, work=part * expected_s, num_waiting=num_waiting):
            return False
        self._held[key] = _Held(amounts, part, self._clock.now_s(), expected_s)
        return True

    def free(self, key: int) -> None:
        """Release what a request holds, and charge the time that it took."""
        held = self._held.pop(key)
        self._ledger.release(held.amounts)
        took_s = max(1e-3, self._clock.now_s() - held.since_s)  # above 0: their mean is what a start costs
        self._ledger.charge(held.part * (took_s - held.expected_s))
        self._mean_s = took_s if self._mean_s is None else self._mean_s + _NEW_PART * (took_s - self._mean_s)

    def want_nothing(self) -> None:
        """Withdraw what this member wants from the ledger: nothing waits that would start if there were more."""
        self._ledger.withdraw()

    def _amounts(self, num_tokens: int) -> dict[str, int]:
        num_blocks = -(-num_tokens // self._block_tokens)
        return {r.name: r.units_of(num_tokens=num_tokens, num_blocks=num_blocks) for r in self._resources}
