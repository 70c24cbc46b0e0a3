# SPDX-License-Identifier: Apache-2.0
"""A model of a deployment as typed data: its releases, and Triton's settings for it."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ensemble_configs.spec.base import Boolean, Name, NotNegative, Positive, Spec
from ensemble_configs.spec.model_names import CANARY, GRAPH, MODELS, STEPS, STEPS_OF_GRAPH
from ensemble_configs.spec.price_spec import PriceSpec
from ensemble_configs.spec.release_spec import ReleaseSpec

StickyKey = Annotated[
    str, Field(pattern=r"^(tenant|parameter:[A-Za-z_][A-Za-z0-9_.-]{0,63}|header:[a-z][a-z0-9-]{0,63})$")
]
ResourceName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)]


class ResourceNeed(Spec):
    """An amount of a resource of Triton's rate limiter that an instance of a model takes while its `execute()` runs."""

    name: ResourceName = Field(description="name of the resource")
    count: Positive = Field(default=1, description="how many of the resource one execution takes")
    is_global: Boolean = Field(default=False, description="of one pool for all devices, not of each device's own")


class RateLimiterSpec(Spec):
    """A model's part in Triton's rate limiter (docs/rate_limiting.md says what that binds and what not)."""

    resources: tuple[ResourceNeed, ...] = ()
    priority: Positive = Field(default=1, description="a weight: of two that contend, 2 is run half as often as 1")

    @model_validator(mode="after")
    def _names_differ(self) -> "RateLimiterSpec":
        names = [need.name for need in self.resources]
        if len(set(names)) < len(names):
            raise ValueError(f"resources must have different names, got {', '.join(names)}")
        return self


class InstancesSpec(Spec):
    """The number of instances of each step that Triton runs, each in a process of its own."""

    preprocessing: Positive = Field(default=1, le=64, description="tokenizers")
    tensorrt_llm: Positive = Field(default=1, description="stays 1")
    postprocessing: Positive = Field(default=1, description="stays 1")
    ensemble: Positive = Field(default=1, description="stays 1")
    tensorrt_llm_bls: Positive = Field(default=1, description="stays 1")

    @model_validator(mode="after")
    def _states_have_one_owner(self) -> "InstancesSpec":
        reasons = {
            "tensorrt_llm": "it owns the engine and batches in flight",
            "postprocessing": "it keeps the text of every stream",
            "ensemble": "it keeps the text of every stream",
            "tensorrt_llm_bls": "it keeps the text of every stream",
        }
        for step, reason in reasons.items():
            if getattr(self, step) > 1:
                raise ValueError(
                    f"{step} must be 1, for {reason}; got {getattr(self, step)}; raise engine.max_num_seqs"
                )
        return self


class TritonQueueSpec(Spec):
    """Triton's own queue before each step that may have one; requests say `priority` and `timeout` to it."""

    priority_levels: Positive = Field(default=3, le=100, description="1 is the first")
    default_priority_level: Positive = Field(default=2, description="level of requests that name none")
    max_queue_size: NotNegative = Field(default=0, description="more are refused by Triton; 0: no bound")

    @model_validator(mode="after")
    def _default_is_a_level(self) -> "TritonQueueSpec":
        if self.default_priority_level > self.priority_levels:
            raise ValueError(
                f"default_priority_level must be at most priority_levels ({self.priority_levels}), "
                f"got {self.default_priority_level}"
            )
        return self


class ModelSpec(ReleaseSpec):
    """A language model: the release that is served, those beside it, and Triton's settings for all of them."""

    name: Name = Field(default="model", description="name of the model, from which Triton's names are made")
    prefix: str | None = Field(
        default=None,
        pattern=r"^([a-z][a-z0-9_]*)?$",
        description="before the names of Triton's models; none: the model's name and '_'; '': upstream's bare names",
    )
    release: Positive = Field(default=1, description="number of the release that is served to whoever names none")
    other_releases: tuple[ReleaseSpec, ...] = Field(
        default=(), description="loaded beside it; asked for by version, or by the request parameter `release`"
    )
    canary: Positive | None = Field(
        default=None, description="of other_releases, the candidate: `ensemble_canary` serves it (`trireme rollout`)"
    )
    on_trial: tuple[Positive, ...] = Field(
        default=(), description="of other_releases, what an A/B test tries out: without it the server goes on"
    )
    sticky_key: StickyKey | None = Field(
        default=None,
        description="what keeps requests on one release while a rollout splits them: `tenant`, `parameter:NAME` of a "
        "request, or `header:NAME` (gRPC metadata, an HTTP header); none: nothing, each request by itself",
    )
    price: PriceSpec | None = Field(
        default=None, description="of a million tokens, in US dollars: for the gateway's ledger; none: nothing costs"
    )
    endpoints: tuple[Literal["ensemble", "tensorrt_llm_bls", "ensemble_graph"], ...] = Field(
        default=("ensemble", "tensorrt_llm_bls", "ensemble_graph"),
        description="the ways from text to text that are served; each is a process or two; tensorrt_llm always is",
    )
    decoupled: Boolean = Field(
        default=True,
        description="upstream's name: requests may stream; false: each gets one response, by ModelInfer and /infer too",
    )
    rate_limiter: RateLimiterSpec | None = None
    instances: InstancesSpec = InstancesSpec()
    triton_queue: TritonQueueSpec | None = None

    @model_validator(mode="before")
    @classmethod
    def _routers_know_the_model(cls, data: object) -> object:
        """Give each release's `kv_events` the model's name, which a release by itself does not know."""
        if not isinstance(data, dict):
            return data
        name = data.get("name", cls.model_fields["name"].default)
        found = _named_in_events(data, name)
        others = found.get("other_releases")
        if isinstance(others, list | tuple):
            found["other_releases"] = [_named_in_events(other, name) for other in others]
        return found

    @property
    def triton_prefix(self) -> str:
        """Return the text before upstream's model names."""
        return f"{self.name}_" if self.prefix is None else self.prefix

    @property
    def steps(self) -> tuple[str, ...]:
        """Return upstream's names of the Triton models of this language model."""
        wanted = {"tensorrt_llm", *self.endpoints, *(STEPS_OF_GRAPH if GRAPH in self.endpoints else ())}
        wanted |= {CANARY} if self.canary is not None else set()
        return tuple(step for step in STEPS if step in wanted)

    @property
    def triton_names(self) -> tuple[str, ...]:
        """Return the full names of the Triton models of this language model."""
        return tuple(self.triton_prefix + step for step in self.steps)

    @property
    def releases(self) -> tuple[ReleaseSpec, ...]:
        """Return every release of the model; requests that name none go to the first."""
        return (as_release(self), *self.other_releases)

    @property
    def trials(self) -> tuple[int, ...]:
        """Return the numbers of the releases that the server can lose, and serve on."""
        return tuple({number: None for number in (self.canary, *self.on_trial) if number not in (None, self.release)})

    @model_validator(mode="after")
    def _each_once(self) -> "ModelSpec":
        if len(set(self.endpoints)) < len(self.endpoints):
            raise ValueError(f"endpoints must differ, got {', '.join(self.endpoints)}")
        numbers = [self.release, *(other.release for other in self.other_releases)]
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"releases must have different numbers, got {', '.join(map(str, numbers))}")
        return self

    @model_validator(mode="after")
    def _trials_can_be_served(self) -> "ModelSpec":
        others = [other.release for other in self.other_releases]
        there = f"one of other_releases ({', '.join(map(str, others))})" if others else "one of other_releases"
        if self.canary is not None and self.canary not in (self.release, *others):
            raise ValueError(f"canary must be {there}, got {self.canary}")
        for number in self.on_trial:
            if number not in (self.release, *others):
                raise ValueError(f"on_trial must be of other_releases, each {there}, got {number}")
        if self.on_trial and "tensorrt_llm_bls" not in self.endpoints:
            raise ValueError("on_trial needs tensorrt_llm_bls among the endpoints, which serves requests by release")
        if self.canary is not None and "ensemble" not in self.endpoints:
            raise ValueError("canary needs ensemble among the endpoints, for it is served beside it; add it there")
        return self

    @model_validator(mode="after")
    def _tenants_are_told(self) -> "ModelSpec":
        if self.sticky_key == "tenant" and any(each.admission is None for each in (self, *self.other_releases)):
            raise ValueError(
                "sticky_key is tenant, which only a release with admission takes; name `admission`, or parameter:NAME"
            )
        return self

    @model_validator(mode="after")
    def _instances_are_of_steps(self) -> "ModelSpec":
        for step in MODELS:
            if getattr(self.instances, step, 1) > 1 and step not in self.steps:
                raise ValueError(
                    f"instances.{step} is {getattr(self.instances, step)}, but endpoints ({', '.join(self.endpoints)}) "
                    f"need no {step}; leave it out"
                )
        return self


class ExtraModelSpec(Spec):
    """A Triton model of the user's own, such as one for embeddings, taken into the repository as it is."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=128)] = Field(
        description="name of the model in Triton"
    )
    dir: Path = Field(description="holds config.pbtxt and the version folders")
    rate_limiter: RateLimiterSpec | None = Field(
        default=None, description="then its config.pbtxt has no instance_group; it is written here"
    )
    instances: Positive = Field(default=1, le=64, description="with rate_limiter")
    kind: Literal["KIND_CPU", "KIND_GPU", "KIND_MODEL"] = Field(default="KIND_CPU", description="with rate_limiter")


def _named_in_events(release: Any, name: object) -> Any:
    events = release.get("kv_events") if isinstance(release, dict) else None
    if not isinstance(release, dict):
        return release
    return {**release, "kv_events": {"model_name": name, **events}} if isinstance(events, dict) else dict(release)


def as_release(model: ReleaseSpec) -> ReleaseSpec:
    """Return only the fields of a release."""
    return ReleaseSpec.model_construct(**{name: getattr(model, name) for name in ReleaseSpec.model_fields})
