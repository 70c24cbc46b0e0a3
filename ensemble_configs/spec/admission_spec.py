# SPDX-License-Identifier: Apache-2.0
"""Admission as typed data: the budget, the queue, load shedding and the targets."""

import itertools
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ensemble_configs.spec.base import Boolean, Number, Positive, Spec
from ensemble_configs.spec.shared_budget_spec import SharedBudgetSpec

Share = Annotated[Number, Field(gt=0, le=1)]


class ClassShares(Spec):
    """Shares of seats, KV blocks and tokens up to which a class may fill the engine.

    What is above a class's share is for higher classes.
    """

    premium: Share = Field(default=1.0, description="share of the class premium")
    standard: Share = Field(default=0.95, description="share of the class standard")
    batch: Share = Field(default=0.75, description="share of the class batch")

    @model_validator(mode="after")
    def _higher_has_more(self) -> "ClassShares":
        if not self.batch <= self.standard <= self.premium:
            raise ValueError(
                f"a class may not fill more than the class above it, got premium {self.premium:g}, "
                f"standard {self.standard:g}, batch {self.batch:g}"
            )
        return self


class BudgetSpec(Spec):
    """Limits of what may be in flight at once."""

    max_tokens: Positive | None = Field(
        default=None, description="prompts and expected outputs in flight; none: what the KV cache holds"
    )
    kv_fraction: Share = Field(default=1.0, description="of the engine's KV blocks; the rest is for its prefix cache")
    forecast: Literal["max_tokens", "learned"] = Field(
        default="max_tokens",
        description="learned: what the tenant's requests made before; a request that makes more may be preempted, once",
    )
    forecast_quantile: Annotated[Number, Field(gt=0, lt=1)] = Field(
        default=0.9, description="with learned: quantile of earlier output lengths that a request is expected to reach"
    )
    shares: ClassShares = ClassShares()
    batch_prefill_share: Share = Field(
        default=0.1,
        description="of `engine.max_num_batched_tokens`: prompt tokens that batch begins at once beside requests of "
        "the classes above; longer prompts begin now and then; 1: no bound",
    )
    shared: SharedBudgetSpec | None = Field(
        default=None, description="what each request holds of a device that other models of the server are on, too"
    )
    tenant_reserve: Number = Field(
        default=0.0625,
        ge=0,
        lt=1,
        description="of the whole: a tenant with more than its fair share leaves so much to the others that come",
    )


class QueueSpec(Spec):
    """Limits of what may wait, and the order in which it starts."""

    policy: Literal["fifo", "fair_classes"] = Field(
        default="fair_classes", description="order of starts; fifo: by arrival"
    )
    max_requests: Positive = Field(default=1024, description="of each class, shared among its tenants by weight")
    max_tokens: Positive = Field(default=4_000_000, description="of each class; prompts and expected outputs")
    refuse_within_ms: Number | None = Field(
        default=15.0,
        gt=0,
        le=1e6,
        description="where `slo.ttft_ms` is set: a request that has waited so long is refused, premium after twice "
        "as long; none: a request that can still have its first token in time may wait",
    )
    ageing_s: Number = Field(
        default=30.0,
        ge=0,
        le=1e6,
        description="a request that has waited so long has a part in every fourth start, of any class; 0: never",
    )
    is_shortest_first: Boolean = Field(default=False, description="within a tenant and class, by expected tokens")
    tenant_weights: dict[str, Annotated[Number, Field(ge=0.001, le=1000)]] = Field(
        default_factory=dict, description="others have 1"
    )


class _LevelSpec(Spec):
    """The offered load at which a load-shedding level starts and ends; 1 is as much as the budget holds."""

    enter: Annotated[Number, Field(gt=0, le=1000)] = Field(description="offered load from which the level holds")
    leave: Annotated[Number, Field(gt=0, le=1000)] = Field(
        description="offered load below which the level ends; below enter"
    )
    priority_class: Literal["batch", "standard"] = Field(
        description="class that the level is for"
    )  # premium is never shed

    @model_validator(mode="after")
    def _leaves_below(self) -> "_LevelSpec":
        if self.leave >= self.enter:
            raise ValueError(
                f"leave ({self.leave:g}) must be below enter ({self.enter:g}), or the level would come and go at once"
            )
        return self


class CapLevelSpec(_LevelSpec):
    """A load-shedding level that caps the output tokens of a class."""

    action: Literal["cap_max_tokens"] = Field(description="caps max_tokens of the class")
    max_tokens: Positive = Field(description="output tokens that a request of the class gets")


class RefuseLevelSpec(_LevelSpec):
    """A load-shedding level that refuses a class."""

    action: Literal["refuse"] = Field(description="refuses the class")


class LoadSheddingSpec(Spec):
    """Load-shedding levels, lowest load first; each holds on top of those before it."""

    window_s: Number = Field(default=5.0, ge=0.1, le=3600, description="in which arrivals fade out of the offered load")
    min_step_s: Number = Field(default=10.0, ge=0, le=3600, description="between two changes")
    steps: Annotated[
        tuple[Annotated[CapLevelSpec | RefuseLevelSpec, Field(discriminator="action")], ...], Field(min_length=1)
    ]

    @model_validator(mode="after")
    def _levels_rise(self) -> "LoadSheddingSpec":
        for number, (lower, upper) in enumerate(itertools.pairwise(self.steps), start=1):
            if upper.enter < lower.enter or upper.leave < lower.leave:
                raise ValueError(
                    f"steps[{number}] must not be entered or left at a lower load than the level before it, got enter "
                    f"{upper.enter:g} after {lower.enter:g} and leave {upper.leave:g} after {lower.leave:g}"
                )
        refused = [step.priority_class for step in self.steps if isinstance(step, RefuseLevelSpec)]
        if refused not in ([], ["batch"], ["batch", "standard"]):
            raise ValueError(f"a class is refused once, and batch before standard; got {refused}")
        return self


class SloSpec(Spec):
    """The targets that the deployment is held to; admission refuses at once what cannot meet the first."""

    ttft_ms: Number | None = Field(default=None, gt=0, le=1e9, description="to the first token")
    tpot_ms: Number | None = Field(default=None, gt=0, le=1e9, description="for each further token")
    availability: Annotated[Number, Field(gt=0, lt=1)] | None = Field(
        default=None, description="share of requests that are answered"
    )


class AdmissionSpec(Spec):
    """The settings of admission."""

    budget: BudgetSpec = BudgetSpec()
    queue: QueueSpec = QueueSpec()
    ladder: LoadSheddingSpec | None = Field(default=None, description="none: nothing is given up but what does not fit")
