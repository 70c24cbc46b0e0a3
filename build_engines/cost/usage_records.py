# SPDX-License-Identifier: Apache-2.0
"""Usage records by tenant: a file of one JSON object a line, read line by line, never all in memory.

{"tenant": "acme", "model": "llama-3.1-70b", "input_tokens": 900, "output_tokens": 210, "cached_tokens": 640,
 "time": "2026-11-02T08:15:00Z"}
"""

import datetime
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from build_engines.cost.bill import Bill, Tokens
from build_engines.cost.cost_spec import Traffic
from trireme.base.errors import SpecError
from trireme.base.known_types import known

_HOUR_S = 3600.0
_LEAST_SEEN = 0.5  # of an hour: one request in its last second is no peak of 3,600
_MOST_TOKENS = 10**8  # of a request, as of `Traffic`: a number beyond is no count


class UsageRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The tokens of one request; a time without a zone is UTC."""

    tenant: str
    model: str
    input_tokens: int
    output_tokens: int
    time: datetime.datetime
    cached_tokens: int = 0  # of the input tokens

    def __post_init__(self) -> None:
        """Refuse impossible counts."""
        for name in ("input_tokens", "output_tokens", "cached_tokens"):
            if not 0 <= getattr(self, name) <= _MOST_TOKENS:
                raise ValueError(f"{name} is {getattr(self, name)}; it is 0 or more, and at most {_MOST_TOKENS:,}")
        if self.cached_tokens > self.input_tokens:
            raise ValueError(f"cached_tokens ({self.cached_tokens}) > input_tokens ({self.input_tokens})")


@dataclass
class Usage:
    """Sums of usage records, by tenant and model."""

    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    tokens: dict[tuple[str, str], Tokens] = field(default_factory=partial(defaultdict, Tokens))
    by_hour: Counter[int] = field(default_factory=Counter)  # requests by hour since 1970 began, UTC
    first_s: float = float("inf")
    last_s: float = float("-inf")

    def add(self, record: UsageRecord) -> None:
        """Add one record."""
        key = record.tenant, record.model
        prefilled = record.input_tokens - record.cached_tokens
        self.requests[key] += 1
        self.tokens[key] += Tokens(prefilled, record.cached_tokens, record.output_tokens)
        time = record.time if record.time.tzinfo else record.time.replace(tzinfo=datetime.UTC)
        at_s = time.timestamp()
        self.by_hour[int(at_s // _HOUR_S)] += 1
        self.first_s, self.last_s = min(self.first_s, at_s), max(self.last_s, at_s)

    @property
    def models(self) -> tuple[str, ...]:
        """Return the models that were asked, by name."""
        return tuple(sorted({model for _, model in self.requests}))

    @property
    def seconds(self) -> float:
        """Return the seconds from the beginning of the first hour to the end of the last."""
        return (self.last_s // _HOUR_S + 1) * _HOUR_S - self.first_s // _HOUR_S * _HOUR_S

    @property
    def hourly(self) -> tuple[float, ...] | None:
        """Return requests an hour of all models, by hour of the day, UTC.

        None: less than a day was recorded, or next to nothing.
        """
        if self.seconds < 24 * _HOUR_S:
            return None
        found = tuple(map(self._requests_an_hour, range(24)))
        return found if any(found) else None

    def _requests_an_hour(self, hour_of_day: int) -> float:
        """Return the requests an hour of an hour of the day.

        The hours that were recorded from end to end count; where there is none, the recorded parts of the first and the
        last.
        """
        first, last = int(self.first_s // _HOUR_S), int(self.last_s // _HOUR_S)
        whole = range(first + 1 + (hour_of_day - first - 1) % 24, last, 24)
        if whole:
            return sum(count for hour, count in self.by_hour.items() if hour in whole) / len(whole)
        parts = [hour for hour in (first, last) if hour % 24 == hour_of_day]
        ends = [(max(self.first_s, hour * _HOUR_S), min(self.last_s, (hour + 1) * _HOUR_S)) for hour in parts]
        seen = sum(end - start for start, end in ends) / _HOUR_S
        return sum(self.by_hour[hour] for hour in parts) / max(_LEAST_SEEN, seen)

    def traffic(self, model: str) -> Traffic:
        """Return the traffic of one model, as means; with a whole day recorded, its shape is that of all models.

        Raises:
            SpecError: no request asked for the model, or none was answered.
        """
        requests = sum(count for (_, asked), count in self.requests.items() if asked == model)
        tokens = sum((found for (_, asked), found in self.tokens.items() if asked == model), Tokens())
        if not tokens.output:
            raise SpecError(f"usage has no output token of the model {model!r}; it has {', '.join(self.models)}")
        prompts = tokens.prefilled + tokens.cached
        everything, hourly = sum(self.requests.values()), self.hourly
        # Of a day and a half, the hours that were seen twice count once.
        per_s = everything / self.seconds if hourly is None else sum(hourly) / 24 / _HOUR_S
        return Traffic(
            requests_per_s=per_s * requests / everything,
            isl=prompts / requests,
            osl=tokens.output / requests,
            cached_fraction=min(tokens.cached / prompts, 1 - 1e-9) if prompts else 0.0,
            hourly=hourly,
        )


@dataclass(frozen=True)
class TenantShare:
    """A tenant's share of a bill."""

    tenant: str
    requests: int
    tokens: Tokens
    usd: float  # of a month
    fraction: float


def load_usage(path: Path) -> Usage:
    """Read usage records and sum them by tenant and model.

    Raises:
        SpecError: the file cannot be read, has no record, or a line is no record; the message names the line.
    """
    usage, decoder = Usage(), msgspec.json.Decoder(known(UsageRecord))
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    usage.add(decoder.decode(line))
                except (msgspec.DecodeError, UnicodeDecodeError, OverflowError) as exc:
                    keys = ", ".join(UsageRecord.__struct_fields__)
                    raise SpecError(
                        f"{path} line {number}: {exc}; a line is an object of {keys} (cached_tokens may be left out)",
                        file=path,
                        line=number,
                    ) from exc
    except OSError as exc:
        raise SpecError(f"{path}: cannot be read: {exc.strerror}", file=path) from exc
    if not usage.requests:
        raise SpecError(f"{path} has no record; a line is one request", file=path)
    return usage


def tenant_shares(found: Bill, usage: Usage) -> tuple[TenantShare, ...]:
    """Divide the whole bill among the tenants by the GPU time of their tokens, the dearest first.

    Raises:
        SpecError: a record names a model that the fleet does not serve.
    """
    pools = {one.model: one for one in found.pools}
    weights: dict[str, float] = {}
    for (tenant, model), tokens in usage.tokens.items():
        if model not in pools:
            raise SpecError(f"usage names the model {model!r}; the fleet serves {', '.join(pools)}", field="model")
        pool = pools[model]
        # Dollars for each second of a replica's work; idle time is everybody's, in proportion.
        work_usd = pool.gpu_usd / pool.mean_busy
        seconds = pool.rates.seconds(tokens.prefilled, tokens.output)
        weights[tenant] = weights.get(tenant, 0.0) + seconds * (work_usd or pool.rates.num_gpus)
    whole = sum(weights.values())
    shares = (
        TenantShare(
            tenant=tenant,
            requests=sum(count for (name, _), count in usage.requests.items() if name == tenant),
            tokens=sum((each for (name, _), each in usage.tokens.items() if name == tenant), Tokens()),
            usd=found.total_usd * weight / whole,
            fraction=weight / whole,
        )
        for tenant, weight in weights.items()
    )
    return tuple(sorted(shares, key=lambda one: (-one.usd, one.tenant)))
