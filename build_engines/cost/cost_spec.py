# SPDX-License-Identifier: Apache-2.0
"""The assumptions about a fleet and its prices, as typed data: the file that `trireme cost` reads.

Money is US dollars before tax, a month is 730 hours. What follows from it: `build_engines.cost.bill`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import yaml
from pydantic import Field, model_validator

from ensemble_configs.spec.base import Boolean, NotNegative, Number, Positive, Spec
from ensemble_configs.spec.strict_yaml import load_yaml
from ensemble_configs.spec.validation import validate
from trireme.base.errors import SpecError

Usd = Annotated[Number, Field(ge=0, le=1e9)]
Amount = Annotated[Number, Field(ge=0, le=1e15)]
Rate = Annotated[Number, Field(gt=0, le=1e12)]
Fraction = Annotated[Number, Field(ge=0, le=1)]


class PlannedEngine(Spec):
    """A replica that `trireme plan` predicts, in the layout that takes the least GPU time within the targets."""

    kind: Literal["planned"]
    model: str = Field(description="a name that `trireme plan` knows, or a checkpoint, from where the command runs")
    gpu: str = "h100"
    max_gpus: Positive = Field(default=8, description="GPUs that one replica may take")
    weight_format: str = "bf16"
    kv_format: str = "bf16"
    max_batch_size: Positive = 2048
    slo_ttft_ms: Annotated[Number, Field(gt=0)] | None = None
    slo_tpot_ms: Annotated[Number, Field(gt=0)] | None = None
    longest_over_mean_output: Annotated[Number, Field(ge=1)] = Field(
        default=1.0,
        description="of static batching, where a batch lasts as long as its longest answer; in-flight batching: 1",
    )


class RatedEngine(Spec):
    """A replica whose prefill and decode rates were measured, each by itself with the batch that is served."""

    kind: Literal["rates"]
    model: str = "model"
    gpus: Positive = 1
    prefill_tokens_per_s: Rate
    decode_tokens_per_s: Rate
    source: str = "given"


class MeasuredEngine(Spec):
    """A replica that was measured under the load that is served, at saturation."""

    kind: Literal["measured"]
    model: str = "model"
    gpus: Positive = 1
    input_tokens_per_s: Annotated[Number, Field(ge=0, le=1e12)] = 0.0
    output_tokens_per_s: Rate
    output_weight: Annotated[Number, Field(gt=0, le=1e6)] | None = Field(
        default=None, description="GPU time of an output token over that of an input token"
    )
    source: str = "given"

    @model_validator(mode="after")
    def _is_divisible(self) -> "MeasuredEngine":
        if self.input_tokens_per_s and self.output_weight is None:
            raise ValueError(
                "output_weight: input and output share the GPU's time, and nothing says how; give output_weight (GPU "
                "time of an output token over that of an input token), or kind: rates with prefill and decode measured "
                "apart, or kind: planned"
            )
        return self


Engine = Annotated[PlannedEngine | RatedEngine | MeasuredEngine, Field(discriminator="kind")]


class GpuPrices(Spec):
    """Prices of a GPU hour, and the shares that are bought at each."""

    on_demand_usd_per_gpu_hour: Usd
    reserved_usd_per_gpu_hour: Usd | None = None
    spot_usd_per_gpu_hour: Usd | None = None
    reserved_replicas: NotNegative = Field(default=0, description="replicas that are paid every hour, used or not")
    spot_fraction: Fraction = Field(default=0.0, description="share of the replicas that are not reserved")
    spot_lost_fraction: Annotated[Number, Field(ge=0, lt=1)] = Field(
        default=0.05, description="of a spot GPU's hours: loading again after an interruption, work done twice"
    )

    @model_validator(mode="after")
    def _has_its_prices(self) -> "GpuPrices":
        if self.reserved_replicas and self.reserved_usd_per_gpu_hour is None:
            raise ValueError(f"reserved_replicas is {self.reserved_replicas}: give reserved_usd_per_gpu_hour, too")
        if self.spot_fraction and self.spot_usd_per_gpu_hour is None:
            raise ValueError(f"spot_fraction is {self.spot_fraction:g}: give spot_usd_per_gpu_hour, too")
        return self

    @property
    def flexible_usd_per_gpu_hour(self) -> float:
        """Return the price of a GPU hour that is not reserved, in US dollars.

        On-demand and spot hours are mixed, and hours lost on spot are bought again.
        """
        spot = (self.spot_usd_per_gpu_hour or 0.0) / (1 - self.spot_lost_fraction)
        return (1 - self.spot_fraction) * self.on_demand_usd_per_gpu_hour + self.spot_fraction * spot


class Traffic(Spec):
    """The traffic on a pool, as means; over a day a cosine, or 24 hours' own shares."""

    requests_per_s: Annotated[Number, Field(gt=0, le=1e9)]
    isl: Annotated[Number, Field(ge=0, le=1e8)] = Field(description="tokens of a prompt")
    osl: Annotated[Number, Field(gt=0, le=1e8)] = Field(description="tokens of an answer")
    cached_fraction: Annotated[Number, Field(ge=0, lt=1)] = Field(
        default=0.0, description="of the prompts' tokens: found in the prefix cache"
    )
    peak_over_mean: Annotated[Number, Field(ge=1, le=2)] = 1.0
    hourly: tuple[Amount, ...] | None = Field(default=None, description="24 numbers in any unit; in place of the peak")

    @model_validator(mode="after")
    def _has_a_day(self) -> "Traffic":
        if self.hourly is not None and (len(self.hourly) != 24 or not sum(self.hourly)):
            raise ValueError(
                f"hourly has {len(self.hourly)} numbers that sum to {sum(self.hourly):g}; give 24, not all 0"
            )
        return self

    @property
    def prefilled(self) -> float:
        """Return the prompt tokens that are not cached."""
        return self.isl * (1 - self.cached_fraction)


class Fleet(Spec):
    """The rule for how many replicas are kept."""

    target_utilisation: Annotated[Number, Field(gt=0, le=1)] = Field(
        default=0.7, description="of the busiest hour; what is left absorbs bursts and queues"
    )
    spare_replicas: NotNegative = Field(default=1, description="replicas kept for a failure or an update")
    min_replicas: Positive = 1
    follows_traffic: Boolean = Field(
        default=False, description="replicas change hour by hour; else the busiest hour's run all day"
    )


class OtherCosts(Spec):
    """Costs other than GPUs.

    Nothing is taken for granted: what is not given is 0, and the report says so.
    """

    egress_usd_per_gb: Usd = 0.0
    egress_bytes_per_output_token: Amount = 0.0
    storage_gb: Amount = 0.0
    storage_usd_per_gb_month: Usd = 0.0
    engineers: Amount = 0.0
    hours_per_engineer_month: Annotated[Number, Field(ge=0, le=730)] = 0.0
    usd_per_engineer_hour: Usd = 0.0


class Tier(Spec):
    """A small model beside the large one, which answers some of the requests."""

    engine: Engine
    request_fraction: Annotated[Number, Field(gt=0, lt=1)]
    prices: GpuPrices | None = Field(
        default=None, description="prices of the small model's GPUs; else the large one's, with nothing reserved"
    )


class Quantized(Spec):
    """The lever of other formats: the engine planned with them, or `rate_factor` times as fast (measured)."""

    weight_format: str | None = None
    kv_format: str | None = None
    rate_factor: Rate | None = None


class Batched(Spec):
    """The lever of in-flight batching: a planned batch size, or `rate_factor` times as fast (measured)."""

    max_batch_size: Positive = 2048
    rate_factor: Rate | None = None


class Cached(Spec):
    """The lever of prefix caching: a share of the prompts' tokens found in the cache."""

    cached_fraction: Annotated[Number, Field(gt=0, lt=1)]


class Spot(Spec):
    """The lever of spot GPUs: the share of them among GPUs that are not reserved."""

    fraction: Annotated[Number, Field(gt=0, le=1)]


class OffHours(Spec):
    """The lever of following the traffic, hour by hour, down to a least number of replicas."""

    min_replicas: Positive = 1


class Levers(Spec):
    """Levers that could be pulled; each is priced alone, last, and with all others."""

    quantization: Quantized | None = None
    batching: Batched | None = None
    prefix_cache: Cached | None = None
    tiers: Tier | None = None
    spot: Spot | None = None
    off_hours: OffHours | None = None


class CostSpec(Spec):
    """A fleet, its prices and its levers."""

    name: str = "fleet"
    engine: Engine
    prices: GpuPrices
    traffic: Traffic
    fleet: Fleet = Fleet()
    other: OtherCosts = OtherCosts()
    tier: Tier | None = None
    levers: Levers = Levers()


Document = TypeVar("Document", bound=Spec)


def changed(spec: Document, changes: Mapping[str, object]) -> Document:
    """Return the spec with other values, not checked again; a part that is not there stays away.

    Args:
        changes: by dotted path, `prices.spot_fraction`; a function is given the value that was there.
    """
    for path, value in changes.items():
        name, _, rest = path.partition(".")
        old = getattr(spec, name)
        if not rest:
            new = value(old) if callable(value) else value
        else:
            new = None if old is None else changed(old, {rest: value})
        spec = spec.model_copy(update={name: new})
    return spec


def load_document(model: type[Document], path: Path) -> Document:
    """Read and check a YAML file of any model.

    Raises:
        SpecError: the file cannot be read, is not YAML, or does not have the model's fields.
    """
    try:
        data = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise SpecError(f"{path}: cannot be read as YAML: {' '.join(str(exc).split())}", file=path) from exc
    return validate(model, data, source=path)
