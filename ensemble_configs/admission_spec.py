# SPDX-License-Identifier: Apache-2.0
"""Who runs next and who is refused, as typed data: the budget, the queue, the targets."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ensemble_configs.spec import Boolean, Number, Positive, Spec

Share = Annotated[Number, Field(gt=0, le=1)]


class ClassShares(Spec):
    """Of seats, KV blocks and tokens: how full a class may make the engine; what is above is for higher classes."""

    premium: Share = 1.0
    standard: Share = 1.0
    batch: Share = 0.95

    @model_validator(mode="after")
    def _higher_has_more(self) -> "ClassShares":
        if not self.batch <= self.standard <= self.premium:
            raise ValueError(
                f"a class may not fill more than the class above it, got premium {self.premium:g}, "
                f"standard {self.standard:g}, batch {self.batch:g}"
            )
        return self


class BudgetSpec(Spec):
    """What may be in flight at once."""

    max_tokens: Positive | None = Field(
        default=None, description="prompts and expected outputs in flight; none: what the KV cache holds"
    )
    kv_fraction: Share = Field(default=1.0, description="of the engine's KV blocks; the rest is for its prefix cache")
    forecast: Literal["max_tokens", "learned"] = Field(
        default="max_tokens",
        description="learned: what the tenant's requests made before; who makes more may be preempted, once",
    )
    forecast_quantile: Annotated[Number, Field(gt=0, lt=1)] = 0.9
    shares: ClassShares = ClassShares()


class QueueSpec(Spec):
    """What may wait, and in which order it starts."""

    policy: Literal["fifo", "fair_classes"] = "fair_classes"
    max_requests: Positive = Field(default=1024, description="of each class, shared among its tenants by weight")
    max_tokens: Positive = Field(default=4_000_000, description="of each class; prompts and expected outputs")
    ageing_s: Number = Field(
        default=30.0, ge=0, le=1e6, description="who has waited so long counts for a class more; 0: never"
    )
    is_shortest_first: Boolean = Field(default=False, description="within a tenant and class, by expected tokens")
    tenant_weights: dict[str, Annotated[Number, Field(ge=0.001, le=1000)]] = Field(
        default_factory=dict, description="others have 1"
    )


class SloSpec(Spec):
    """The targets that the deployment is held to; admission refuses at once what cannot meet the first."""

    ttft_ms: Number | None = Field(default=None, gt=0, le=1e9, description="to the first token")
    tpot_ms: Number | None = Field(default=None, gt=0, le=1e9, description="for each further token")
    availability: Annotated[Number, Field(gt=0, lt=1)] | None = Field(
        default=None, description="share of requests that are answered"
    )


class AdmissionSpec(Spec):
    """All of it."""

    budget: BudgetSpec = BudgetSpec()
    queue: QueueSpec = QueueSpec()
