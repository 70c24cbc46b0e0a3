# SPDX-License-Identifier: Apache-2.0
"""The description of a load: what is asked, when, of which server; for worker processes and reports."""

import itertools
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from clients.access import NO_ACCESS, Access, with_scheme
from clients.load.arrivals import arrivals_s
from clients.load.load_plan import Session, sessions
from clients.load.openai.openai_stream import completions_url, is_openai_url, refuse_unknown
from clients.load.prompts import ExactWriter, ProportionalWriter, Writer
from clients.load.workload_spec import WORKLOAD, Workload
from trireme.base.errors import RequestError

MOST_PLANNED = 10_000_000

_ARRIVALS, _BURSTINESS, _PERIOD_S = "poisson", 1.0, 86_400.0  # where nothing is said


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The load of one run.

    Attributes:
        url: host:port of Triton's gRPC endpoint, or http://HOST:PORT/v1 of an OpenAI-compatible server.
        access: certificates and the key, as names of files and variables.
        workload: the workload as JSON data (`clients.load.workload_spec`).
        rate_per_s: rate of an open loop; None: a closed loop of `num_users`, or a trace, which has its own moments.
        num_requests: sessions that are begun; None: as many as `duration_s` takes.
        tokenizer_dir: folder of the tokenizer for prompts of exact lengths; None: by `tokens_per_word`.
    """

    url: str
    access: Access = NO_ACCESS
    model: str = "ensemble"
    workload: dict[str, Any]
    rate_per_s: float | None = None
    num_users: int | None = None
    arrivals: str = _ARRIVALS
    burstiness: float = _BURSTINESS
    period_s: float = _PERIOD_S
    num_requests: int | None = None
    duration_s: float | None = None
    timeout_s: float | None = None
    num_retries: int = 0
    num_processes: int = 1
    seed: int = 1
    tokenizer_dir: str | None = None
    tokens_per_word: float = 1.0

    @property
    def is_open(self) -> bool:
        """Return whether requests are sent when they are due, whatever the server does."""
        return self.num_users is None

    def check(self) -> None:
        """Check that the options go together.

        Raises:
            RequestError: they do not; it names the option.
        """
        if is_openai_url(self.url):
            completions_url(self.url)
            with_scheme(self.url, self.access)
        is_trace = self.spec().kind == "trace"
        if (self.rate_per_s is None and not is_trace) == (self.num_users is None):
            raise RequestError(
                "a load has --rate (an open loop) or --concurrency (a closed one): give one of them"
                + ("; a trace has its own rate: --workload's speedup changes it" if is_trace else ""),
                field="rate",
            )
        if is_trace and self.rate_per_s is not None:
            raise RequestError(
                "a trace says itself when its requests come: leave --rate out, and set the workload's speedup",
                field="rate",
            )
        if self.num_requests is None and self.duration_s is None and not is_trace:
            raise RequestError("a load ends: give --requests, --duration or both", field="requests")
        for name, value in (
            ("requests", self.num_requests),
            ("duration", self.duration_s),
            ("concurrency", self.num_users),
            ("processes", self.num_processes),
            ("timeout", self.timeout_s),
        ):
            if value is not None and not 0 < value < math.inf:
                raise RequestError(f"--{name} must be a number above 0, got {value:g}", field=name, value=value)
        if self.rate_per_s is not None:
            next(self._moments(), None)  # refuses what arrivals refuse
        self._check_size()
        for option, is_without_effect, needs in (
            ("arrivals", self.arrivals != _ARRIVALS and self.rate_per_s is None, "--rate"),
            ("burstiness", self.burstiness != _BURSTINESS and self.arrivals != "gamma", "--arrivals gamma"),
            ("period", self.period_s != _PERIOD_S and self.arrivals != "diurnal", "--arrivals diurnal"),
        ):
            if is_without_effect:
                raise RequestError(
                    f"--{option} changes nothing without {needs}: give that, or leave it out", field=option
                )

    def _check_size(self) -> None:
        by_rate = self.rate_per_s * self.duration_s if self.rate_per_s and self.duration_s else math.inf
        bounds = {"fewer --requests": self.num_requests or math.inf, "a lower --rate or --duration": by_rate}
        planned = min(bounds.values())
        if MOST_PLANNED < planned < math.inf:
            given = [option for option, bound in bounds.items() if bound < math.inf]  # a verb may not have the others
            raise RequestError(
                f"a load is planned before its first request, of at most {MOST_PLANNED} requests, got {planned:.4g}: "
                f"give {', or '.join(given)}",
                field="requests",
                value=planned,
            )

    def spec(self) -> Workload:
        """Return the workload as typed data."""
        return WORKLOAD.validate_python(self.workload)

    def writer(self) -> Writer:
        """Return the writer of the load's prompts."""
        if self.tokenizer_dir is not None:
            return ExactWriter(Path(self.tokenizer_dir), seed=self.seed)
        return ProportionalWriter(self.tokens_per_word, seed=self.seed)

    def plan(self) -> Iterator[Session]:
        """Yield the sessions, equal ones for an equal seed; in an open loop each has the moment when it is due.

        Raises:
            RequestError: a session has what this kind of server cannot be asked.
        """
        planned = sessions(self.spec(), self.writer(), seed=self.seed)
        if self.rate_per_s is not None:
            moments = itertools.takewhile(self._is_in_time, self._moments())
            planned = (
                msgspec.structs.replace(session, due_s=due_s) for due_s, session in zip(moments, planned, strict=False)
            )
        elif self.is_open:
            planned = itertools.takewhile(lambda session: self._is_in_time(session.due_s or 0.0), planned)
        if is_openai_url(self.url):
            planned = map(_known_to_openai, planned)
        return itertools.islice(planned, self.num_requests)

    def _moments(self) -> Iterator[float]:
        assert self.rate_per_s is not None
        rng = random.Random(self.seed + 1)
        return arrivals_s(rng, self.arrivals, self.rate_per_s, burstiness=self.burstiness, period_s=self.period_s)

    def _is_in_time(self, due_s: float) -> bool:
        return self.duration_s is None or due_s < self.duration_s


def _known_to_openai(session: Session) -> Session:
    refuse_unknown(session.request(0, ""))
    return session
