# SPDX-License-Identifier: Apache-2.0
"""Objectives of a deployment: the one place of every threshold that an alert or a dashboard has."""

from bisect import bisect_right
from typing import Annotated

from pydantic import Field

from ensemble_configs.spec.admission_spec import SloSpec
from ensemble_configs.spec.base import Number, Positive, Spec
from serving.telemetry.request_metrics import FIRST_TOKEN_BUCKETS_S, TOKEN_BUCKETS_S
from trireme.base.errors import SpecError

_Share = Annotated[Number, Field(gt=0, lt=1)]
_AboveZero = Annotated[Number, Field(gt=0)]
# No percentile of a histogram is above its last bound, so a target there could not be missed.
_FirstToken = Annotated[Number, Field(gt=0, lt=FIRST_TOKEN_BUCKETS_S[-1])]
_PerToken = Annotated[Number, Field(gt=0, lt=TOKEN_BUCKETS_S[-1])]
MOST_AVAILABLE = 0.99999
_Target = Annotated[Number, Field(gt=0, lt=MOST_AVAILABLE)]  # what it leaves is divided by


class Objectives(Spec):
    """Targets of the service, and limits of what it runs on."""

    ttft_p99_s: _FirstToken = Field(default=1.0, description="to the first token")
    tpot_p99_s: _PerToken = Field(default=0.1, description="for each further token, mean of a request")
    availability: _Target = Field(default=0.99, description="share of requests that do not end in an error")
    ttft_share: _Target = Field(default=0.99, description="share of requests with a first token within ttft_p99_s")
    min_requests: Positive = Field(default=10, description="in five minutes; of fewer no ratio or percentile is judged")
    fast_burn: _AboveZero = Field(default=14.4, description="times the error budget; of 30 days gone in 2")
    slow_burn: _AboveZero = Field(default=6.0, description="as fast_burn; gone in 5")
    max_waiting: Positive = Field(default=10, description="requests that may wait and not become fewer")
    kv_cache_share: _Share = Field(default=0.95, description="of the blocks")
    preemptions_per_s: _AboveZero = 0.1
    fallback_share: _Share = Field(
        default=0.05, description="of a gateway's answers, by others than the model asked for"
    )
    moved_streams: Positive = Field(default=10, description="in a quarter of an hour, that lost their server")
    ledger_waiting_bytes: Positive = Field(default=1_000_000, description="of a gateway's journal; some 2,000 requests")
    gpu_active_share: _Share = Field(default=0.5, description="of the time, mean over the GPUs of a namespace")
    certificate_days: Positive = Field(default=14, description="before a certificate ends")
    disk_free_share: _Share = 0.1

    @property
    def error_share(self) -> float:
        """Return the share of requests that may fail, which is the error budget."""
        return round(1 - self.availability, 6)

    @property
    def ttft_bucket_s(self) -> float:
        """Return the histogram's bound for a first token in time, in seconds: the target, or the next bound below."""
        index = bisect_right(FIRST_TOKEN_BUCKETS_S, self.ttft_p99_s)
        return FIRST_TOKEN_BUCKETS_S[max(0, index - 1)]


def objectives_of(slo: SloSpec) -> Objectives:
    """Return the objectives of a deployment; targets that it does not set have the defaults.

    Raises:
        SpecError: an alert for a target could never fire.
    """
    for name, most, why in (
        ("ttft_ms", 1000 * FIRST_TOKEN_BUCKETS_S[-1], "where its histogram ends"),
        ("tpot_ms", 1000 * TOKEN_BUCKETS_S[-1], "where its histogram ends"),
        ("availability", MOST_AVAILABLE, "above which one error is all of the budget"),
    ):
        value = getattr(slo, name)
        if value is not None and value >= most:
            raise SpecError(
                f"slo.{name} is {value!r}, and no alert could tell whether it is missed: it must be below {most:g}, "
                f"{why}; give less, or leave it out for the default",
                field=f"slo.{name}", value=value,
            )  # fmt: skip
    said = {
        "ttft_p99_s": None if slo.ttft_ms is None else slo.ttft_ms / 1000,
        "tpot_p99_s": None if slo.tpot_ms is None else slo.tpot_ms / 1000,
        "availability": slo.availability,
    }
    return Objectives.model_validate({name: value for name, value in said.items() if value is not None})
