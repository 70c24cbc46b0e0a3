# SPDX-License-Identifier: Apache-2.0
"""An embedding model of a deployment as typed data: from texts to vectors, beside the language models."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from ensemble_configs.spec.base import Boolean, Name, Number, Positive, Spec
from ensemble_configs.spec.price_spec import Dollars

_ON_TENSORRT_LLM = (
    "embeddings are computed by OpenVINO alone: TensorRT-LLM's encoders are not served here; export the model to "
    "OpenVINO, and leave provider out"
)


class EmbeddingPriceSpec(Spec):
    """The price of an embedding model's tokens for callers of the gateway, in US dollars for a million tokens."""

    input: Dollars = Field(description="a million tokens of texts")


class EmbeddingModelSpec(Spec):
    """A model that makes embeddings, served by Triton under its own name (docs/embeddings.md)."""

    name: Name = Field(description="that callers write, and Triton's name of the model")
    provider: Literal["openvino"] = Field(default="openvino", description="what computes the vectors, on the CPU")
    dir: Path = Field(description="folder with openvino_model.xml, config.json and tokenizer.json")
    pooling: Literal["cls", "mean", "last_token"] = Field(
        description="how the vectors of a text's tokens become one; the model's own, as its card says"
    )
    is_normalized: Boolean = Field(default=True, description="vectors have the length 1")
    is_truncatable: Boolean = Field(
        default=False,
        description="the model was trained so that the beginning of a vector is one, too (Matryoshka): requests may "
        "say `dimensions`",
    )
    max_tokens: Positive = Field(
        default=512, description="of a text, special tokens included; longer texts are refused"
    )
    prefix: Annotated[str, Field(max_length=4096)] = Field(
        default="", description="put before each text, for models that want an instruction; not before token ids"
    )
    max_batch_size: Positive = Field(
        default=64, le=1024, description="texts of one request to Triton, and of the requests that are joined"
    )
    max_batch_tokens: Positive = Field(
        default=8192, description="tokens that are computed at once, padding included; more in turns"
    )
    batch_wait_ms: Number = Field(
        default=1.0, ge=0, le=1000, description="how long a request waits for others that are joined with it"
    )
    max_queue_size: Positive = Field(default=1024, description="requests that wait; more are refused")
    execution_mode: Literal["performance", "accuracy"] = Field(
        default="accuracy",
        description="accuracy: in f32, so that a text has the same vector beside others and on other CPUs; "
        "performance: what the CPU does fastest",
    )
    num_threads: Positive | None = Field(default=None, le=1024, description="CPU threads; none: all cores")
    price: EmbeddingPriceSpec | None = Field(
        default=None, description="of a million tokens, in US dollars: for the gateway's ledger; none: nothing costs"
    )

    @field_validator("provider", mode="before")
    @classmethod
    def _provider_is_here(cls, value: object) -> object:
        if value in ("tensorrt", "pytorch"):
            raise ValueError(_ON_TENSORRT_LLM)
        return value

    @model_validator(mode="after")
    def _a_text_fits_a_batch(self) -> "EmbeddingModelSpec":
        if self.max_tokens > self.max_batch_tokens:
            raise ValueError(
                f"max_batch_tokens ({self.max_batch_tokens}) < max_tokens ({self.max_tokens}), so the longest text "
                "would never be computed; raise it, or lower max_tokens"
            )
        return self
