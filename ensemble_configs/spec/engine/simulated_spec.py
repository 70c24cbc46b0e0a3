# SPDX-License-Identifier: Apache-2.0
"""A simulated engine, as typed data: the formula of its steps, and what is to go wrong with it."""

from typing import Literal

from pydantic import Field, model_validator

from ensemble_configs.spec.base import Boolean, Integer, NotNegative, Number, Positive, Spec
from ensemble_configs.spec.engine.provider_spec import FixedCacheSpec


class SimulatedFaultSpec(Spec):
    """The faults of a simulated engine: a rehearsal of what a server has to survive."""

    kind: Literal["crash", "hang", "error"] = Field(
        description="how the engine fails; error: a request ends with an error in place of its first token"
    )
    after_requests: NotNegative | None = Field(
        default=None, description="that were taken before; none: already while it loads"
    )
    share: Number = Field(default=1.0, gt=0, le=1, description="of the requests that fail, where kind is error")


class SimulatedEngineSpec(FixedCacheSpec):
    """A deterministic engine with a real paged-KV scheduler and no model: time is a formula, tokens are a hash."""

    provider: Literal["simulated"]
    mode: Literal["hash", "echo"] = Field(default="hash", description="echo: the output is the prompt, over and over")
    end_id: NotNegative | None = Field(
        default=None, description="the token that ends an answer by itself; none: answers have all their max_tokens"
    )
    vocab_size: Positive = Field(default=4096, ge=17, description="the first 16 tokens are never made")
    kv_block_tokens: Positive = Field(default=16, description="tokens of a KV block")
    is_block_reuse: Boolean = Field(
        default=False, description="keep KV blocks of all finished requests for reuse; false: of those that ask for it"
    )
    seed: Integer = Field(default=0, description="seed of the tokens")
    step_ms: Number = Field(default=1.0, ge=0, le=60_000, description="a step's fixed time")
    prefill_us_per_token: Number = Field(default=20.0, ge=0, le=1e6, description="a step's time for each prompt token")
    decode_us_per_seq: Number = Field(
        default=50.0, ge=0, le=1e6, description="a step's time for each sequence that decodes"
    )
    weight_bytes: Integer = Field(default=0, ge=0, description="that it stands for in a memory plan and in the metrics")
    kv_bytes_per_token: Integer = Field(default=0, ge=0, description="as weight_bytes")
    flops_per_token: Number = Field(
        default=0, ge=0, le=9e15, description="that it stands for in the metrics; 0: not shown"
    )
    peak_bandwidth_bytes_per_s: Number = Field(
        default=0, ge=0, le=9e15, description="as flops_per_token, of its device"
    )
    peak_flops: Number = Field(default=0, ge=0, le=9e15, description="as flops_per_token, of its device")
    error_rate: Number = Field(
        default=0.0, ge=0, le=1, description="share of tokens that differ from those of the same engine without errors"
    )
    fault: SimulatedFaultSpec | None = None

    @model_validator(mode="after")
    def _the_end_is_a_token(self) -> "SimulatedEngineSpec":
        if self.end_id is not None and self.end_id >= self.vocab_size:
            raise ValueError(
                f"end_id ({self.end_id}) is no token of vocab_size ({self.vocab_size}); name a smaller one"
            )
        return self
