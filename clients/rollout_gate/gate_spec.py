# SPDX-License-Identifier: Apache-2.0
"""Settings of the gate: what counts as worse, how sure it must be, how long it may take."""

from typing import Annotated

from pydantic import Field, model_validator

from ensemble_configs.spec.base import Number, Positive, Spec

Effect = Annotated[Number, Field(gt=0, lt=1)]
Factor = Annotated[Number, Field(ge=2, le=100)]
Chance = Annotated[Number, Field(gt=0, le=0.2)]


class EffectSizes(Spec):
    """The effect sizes of the metrics: how much worse is too much.

    A candidate that is worse by less than half of an effect size is never rolled back for it.
    """

    ttft: Effect = Field(default=0.10, description="longer, as a share of the baseline's geometric mean")
    tpot: Effect = Field(default=0.05, description="longer, as a share of the baseline's geometric mean")
    output_tokens: Effect = Field(default=0.20, description="more, or as many times fewer, than the baseline's")
    ttft_of_some: Effect = Field(default=0.25, description="longer, for one tenant or prompts of one length")
    tpot_of_some: Effect = Field(default=0.25, description="longer, for one tenant or prompts of one length")
    ttft_over_target: Effect = Field(default=0.05, description="of all requests: more of them over the TTFT target")
    slow: Effect = Field(default=0.01, description="of all requests: more of them with a TTFT far over their like's")
    slow_decode: Effect = Field(default=0.01, description="of all requests: more with a TPOT far over their like's")
    errors: Effect = Field(default=0.01, description="of all requests: more of them")
    empty: Effect = Field(default=0.01, description="of all answers: more of them without any text")
    looping: Effect = Field(default=0.01, description="of all answers: more of them that repeat themselves at the end")
    cut: Effect = Field(default=0.10, description="of all answers: more or fewer of them that end by their length")
    disliked: Effect = Field(default=0.05, description="of all that a user gave an opinion on: more that were disliked")
    quality: Effect = Field(default=0.05, description="of a score of 0 to 1: less, prompt by prompt")


class GateSpec(Spec):
    """The settings of the gate."""

    alpha: Chance = Field(
        default=0.01, description="chance of failing a candidate that is no worse, at any look and by any test"
    )
    pass_alpha: Chance = Field(
        default=0.05, description="chance of passing a candidate that is worse by the effect size of a metric"
    )
    effects: EffectSizes = EffectSizes()
    min_requests: Positive = Field(
        default=100, description="of each arm, before any test of means: what holds for large samples needs them"
    )
    max_requests: Positive = Field(
        default=4000,
        description="of the arm that has fewer; undecided then, and after 9 times `fade_s`, is undecided for good: "
        "hold, never promote",
    )
    fade_s: Annotated[Number, Field(gt=0, le=86400)] = Field(
        default=80.0,
        description="seconds in which a queue of one arm's own fades to 1/e, at most; full proof takes 9 times as long",
    )
    ttft_target_ms: Annotated[Number, Field(gt=0, le=1e9)] | None = Field(
        default=None, description="as `slo.ttft_ms` of the deployment; none: nothing is said about the target"
    )
    slow_factor: Factor = Field(
        default=5.0, description="times the TTFT that the work explains, at least: slow; more where many are"
    )
    slow_decode_factor: Factor = Field(default=3.0, description="the same of TPOT")
    guard_share: Annotated[Number, Field(gt=0, lt=1)] = Field(
        default=0.05,
        description="of the candidate's requests that may fail, or be empty or loop, whatever the baseline does",
    )

    @model_validator(mode="after")
    def _has_room_to_decide(self) -> "GateSpec":
        if self.max_requests < self.min_requests:
            raise ValueError(
                f"max_requests ({self.max_requests}) must be at least min_requests ({self.min_requests}), or no "
                "rollout could ever be judged"
            )
        return self
