# SPDX-License-Identifier: Apache-2.0
"""The fields that every provider of engines has: the limits of a step, and how long an engine may be silent."""

from pydantic import Field

from ensemble_configs.spec.base import Number, Positive, Spec

BATCH_WAIT = (
    "an idle engine waits so long, after a request, for another one to share its prefill, and four times as long in all"
)


class ProviderSpec(Spec):
    """The fields that every provider has."""

    max_seq_len: Positive = Field(default=2048, ge=2, description="prompt and output together, tokens")
    max_num_seqs: Positive = Field(default=64, description="requests in one in-flight batch")
    max_num_batched_tokens: Positive = Field(default=512, description="tokens in one step; longer prompts are chunked")
    watchdog_s: Number = Field(
        default=30.0,
        ge=2,
        le=86_400,
        description="an engine that is silent, or has work and gets no further, for so long is ended and started "
        "again; more than its longest step takes",
    )
    load_timeout_s: Number = Field(
        default=1800.0,
        ge=1,
        le=86_400,
        description="an engine that has not loaded within this time is ended, and the error says what it logged last",
    )

    @property
    def max_tokens_per_step(self) -> int:
        """Tokens that a step may add to a sequence; more than one with drafts by deployment."""
        return 1

    @property
    def close_timeout_s(self) -> float:
        """Seconds that the engine may take to free what it holds; 0 where its process just ends."""
        return 0.0

    @property
    def batch_wait_s(self) -> float:
        """Seconds that an idle engine waits, after a request, for another one; 0 where it batches by itself."""
        return 0.0


class FixedCacheSpec(ProviderSpec):
    """The fields of a provider that makes its KV cache as large as the deployment says."""

    num_kv_blocks: Positive = Field(default=2048, description="KV cache blocks, shared by all requests")
    batch_wait_ms: Number = Field(
        default=0.0,
        ge=0,
        le=100,
        description=BATCH_WAIT,
    )

    @property
    def batch_wait_s(self) -> float:
        """Seconds that an idle engine waits, after a request, for another one."""
        return self.batch_wait_ms / 1000
