# SPDX-License-Identifier: Apache-2.0
"""The exchange of KV cache between two engines of vLLM, as typed data."""

from typing import Literal

from pydantic import Field

from ensemble_configs.spec.base import Port, Positive, Spec


class KvTransferSpec(Spec):
    """KV cache from one engine to another, so that a prompt is computed in one and its answer in the other."""

    role: Literal["both", "prefill", "decode"] = Field(
        default="both",
        description="prefill: other engines take its prompts' KV cache; decode: it takes that of others; of vLLM's "
        "connector, which says that both will go",
    )
    host: str | None = Field(
        default=None,
        min_length=1,
        description="address at which other engines reach this engine; none: the one that the machine's own name has, "
        "in Kubernetes the pod's",
    )
    port: Port | None = Field(
        default=None,
        description="at which other engines ask for this engine's side of a connection; none: a free one at each start",
    )
    lease_s: Positive = Field(
        default=30,
        le=3600,
        description="a prompt's KV cache waits so long for an engine that takes it, before its blocks are free",
    )
