# SPDX-License-Identifier: Apache-2.0
"""The gateway's part of a deployment as typed data: what it does where something that it needs is away."""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ensemble_configs.spec.base import Boolean, Integer, Name, Number, Positive, PositiveSize, Spec
from ensemble_configs.spec.callers.oidc_spec import OidcSpec
from ensemble_configs.spec.price_spec import Dollars, PriceSpec

FirstTokenS = Annotated[Number, Field(gt=0, le=3600)]
_FIRST_TOKEN = "seconds that it has to begin an answer, before the next step is asked; none: any time"
Alias = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:/-]{1,64}$")]


class TenantSpec(Spec):
    """The limits of a tenant, of all its keys together, and what may answer it."""

    name: str = Field(pattern=r"^[A-Za-z0-9._:@/-]{1,128}$", description="as keys have it (--tenant)")
    requests_per_minute: PositiveSize | None = Field(default=None, description="that may begin; none: any number")
    tokens_per_minute: PositiveSize | None = Field(default=None, description="of prompts and answers; none: any")
    streams: PositiveSize | None = Field(default=None, description="requests that may run at a time; none: any")
    usd_per_day: Dollars | None = Field(default=None, description="in a day of UTC, by the ledger; none: any")
    usd_per_month: Dollars | None = Field(default=None, description="in a month of UTC, by the ledger; none: any")
    fallbacks: tuple[Name, ...] | None = Field(
        default=None,
        description="models and managed APIs that may answer in place of the model asked for; none: the models of the "
        "chain, and no managed API",
    )
    is_resident: Boolean = Field(
        default=False, description="its prompts never leave for a managed API, whatever else is written"
    )


class ManagedApiSpec(Spec):
    """An API elsewhere that answers where no model of the deployment can: it sees the prompts."""

    name: Name = Field(description="as fallbacks, answers and the ledger have it")
    url: str = Field(
        pattern=r"^https?://[^\s?#@]+$", description="such as https://api.example.com/v1; its paths are OpenAI's"
    )
    model: str = Field(min_length=1, max_length=256, description="that is asked for there")
    key_file: Path | None = Field(default=None, description="file with its key; none: it wants no key")
    ca_file: Path | None = Field(
        default=None, description="PEM file of the authorities that are trusted; none: those of the machine"
    )
    proxy: str | None = Field(
        default=None, pattern=r"^http://[^\s?#@]+$", description="HTTP proxy on the way there; none: there is none"
    )
    price: PriceSpec | None = Field(default=None, description="of its tokens, for budgets and the ledger; none: 0")
    limit_field: Literal["max_tokens", "max_completion_tokens"] = Field(
        default="max_tokens", description="its name of the most tokens of an answer"
    )
    silence_s: Annotated[Number, Field(gt=0, le=3600)] = Field(
        default=60.0, description="an answer that says nothing for so long has failed"
    )


class FallbackStepSpec(Spec):
    """A step of a chain: a model of the deployment, or a managed API."""

    model: Name | None = Field(default=None, description="another model of the deployment")
    api: Name | None = Field(default=None, description="one of gateway.managed_apis")
    first_token_s: FirstTokenS | None = Field(default=None, description=_FIRST_TOKEN)

    @property
    def name(self) -> str:
        """Return the name of what answers."""
        return self.model or self.api or ""


class FallbackSpec(Spec):
    """The chain behind a model: the first of its steps that begins an answer gives it."""

    model: Name = Field(description="that callers ask for")
    first_token_s: FirstTokenS | None = Field(default=None, description=_FIRST_TOKEN)
    steps: Annotated[tuple[FallbackStepSpec, ...], Field(min_length=1)] = Field(description="in this order")


class SemanticCacheSpec(Spec):
    """The kept answers that are given to other questions, too, which are alike; some of them are wrong then."""

    embedding_model: Name = Field(description="one of embedding_models, which tells how alike two questions are")
    least_similarity: Annotated[Number, Field(gt=0, le=1)] = Field(
        description="cosine from which two questions are taken for one; `trireme gateway cache-report` says how many "
        "wrong answers that gives"
    )
    tenants: tuple[Annotated[str, Field(min_length=1, max_length=128)], ...] | None = Field(
        default=None, description="tenants whose callers get such answers; none: all callers"
    )
    max_questions: Positive = Field(
        default=10_000, le=1_000_000, description="that are remembered, of all callers, in the gateway's memory"
    )
    wait_ms: Annotated[Number, Field(gt=0, le=60_000)] = Field(
        default=500.0, description="a question whose vector takes longer is asked of the model"
    )


class AnswerCacheSpec(Spec):
    """The answers that are given again where the same is asked again: greedy ones, and those with a seed."""

    ttl_s: Annotated[Number, Field(gt=0, le=604_800)] = Field(
        default=300.0, description="an answer is forgotten after so long"
    )
    max_mib: Positive = Field(default=64, description="of a gateway's memory; a Redis has its own `maxmemory`")
    semantic: SemanticCacheSpec | None = Field(
        default=None, description="answers to questions that are alike; none: to the same question alone"
    )


class LedgerRetentionSpec(Spec):
    """The time for which a gateway's ledger (`--ledger`) has each request; without it, for ever."""

    keep_days: Annotated[Integer, Field(ge=1, le=36_500)] = Field(
        description="requests that began before so many days (UTC) are deleted, and today is none of them"
    )
    day_sums: Boolean = Field(
        default=True, description="the sums of their days stay, by all that `trireme gateway usage --by` takes"
    )


class SimpleSpec(Spec):
    """The rules by which a request is simple; it has to keep all of them."""

    max_prompt_chars: PositiveSize = Field(
        default=2000, description="of the prompt, or the messages as JSON, with tools and a schema"
    )
    max_messages: PositiveSize = Field(default=6, description="of a conversation")
    max_answer_tokens: PositiveSize | None = Field(
        default=None, description="that the request asks for, where it says; none: any number"
    )
    tools: Boolean = Field(default=False, description="requests with tools may be simple")
    schemas: Boolean = Field(default=False, description="requests for JSON may be simple")
    words_of_others: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = Field(
        default=(), description="a prompt, or a last message, with one of these is not simple: `prove`, `refactor`"
    )


class TierSpec(Spec):
    """A name that stands for two models: simple requests go to the small one."""

    name: Alias = Field(description="that callers write as the model, such as `auto`")
    small: Name = Field(description="model for simple requests")
    large: Name = Field(description="model for the others")
    simple: SimpleSpec = Field(default=SimpleSpec(), description="what a simple request is")


class GatewaySpec(Spec):
    """Rules of the gateways before the deployment."""

    aliases: dict[Alias, Name] = Field(
        default={}, description="other names that callers may write for a model, such as `gpt-4o: chat`"
    )
    tenants: tuple[TenantSpec, ...] = Field(
        default=(), description="limits and rules of tenants; others have no limits"
    )
    when_limits_are_away: Literal["refuse", "admit"] = Field(
        default="refuse",
        description="keys with limits, while the Redis of limits is away: refused, or counted by each gateway",
    )
    tiers: tuple[TierSpec, ...] = Field(default=(), description="names that stand for two models")
    answer_cache: AnswerCacheSpec | None = Field(
        default=None, description="answers that are given again, to the same tenant; none: each is made anew"
    )
    ledger_retention: LedgerRetentionSpec | None = Field(
        default=None, description="how long a ledger has each request; none: for ever"
    )
    managed_apis: tuple[ManagedApiSpec, ...] = Field(default=(), description="APIs elsewhere, for fallbacks")
    fallbacks: tuple[FallbackSpec, ...] = Field(default=(), description="what answers where a model cannot")
    oidc: OidcSpec | None = Field(
        default=None, description="provider whose tokens callers may bring in place of a key; none: keys alone"
    )

    def find_clashes(self, models: Collection[str], *, embedding_models: Collection[str] = ()) -> list[str]:
        """Return what is wrong with these rules in a deployment with some language and embedding models."""
        known = ", ".join(sorted(models))
        all_models = [*models, *embedding_models]
        found = [
            f"gateway.aliases.{alias} must name a model, got {name!r}; there are {', '.join(sorted(all_models))}"
            for alias, name in self.aliases.items()
            if name not in all_models
        ]
        found += [f"gateway.aliases.{alias} is the name of a model" for alias in self.aliases if alias in all_models]
        for what, names in (
            ("tenants", [tenant.name for tenant in self.tenants]),
            ("managed_apis", [api.name for api in self.managed_apis]),
            ("fallbacks", [chain.model for chain in self.fallbacks]),
            ("tiers", [tier.name for tier in self.tiers]),
        ):
            found += [f"gateway.{what} has {name!r} twice" for name in dict.fromkeys(names) if names.count(name) > 1]
        for tier in self.tiers:
            if tier.name in all_models or tier.name in self.aliases:
                found.append(f"gateway.tiers has {tier.name!r}, which is the name of a model, or an alias")
            found += [
                f"gateway.tiers of {tier.name!r}: {size} must name a model, got {name!r}; there are {known}"
                for size, name in (("small", tier.small), ("large", tier.large))
                if name not in models
            ]
            if tier.small == tier.large:
                found.append(f"gateway.tiers of {tier.name!r} has one model, {tier.small!r}; it stands for two")
        found += [] if self.oidc is None else self.oidc.find_clashes()
        semantic = None if self.answer_cache is None else self.answer_cache.semantic
        if semantic is not None and semantic.embedding_model not in embedding_models:
            found.append(
                "gateway.answer_cache.semantic.embedding_model must name one of embedding_models, got "
                f"{semantic.embedding_model!r}; there are {', '.join(sorted(embedding_models)) or 'none'}"
            )
        apis = [api.name for api in self.managed_apis]
        found += [
            f"gateway.managed_apis has {name!r}, which is the name of a model" for name in apis if name in all_models
        ]
        return found + self._clashes_of_fallbacks(models)

    def _clashes_of_fallbacks(self, models: Collection[str]) -> list[str]:
        apis = [api.name for api in self.managed_apis]
        found: list[str] = []
        for chain in self.fallbacks:
            model, where = chain.model, f"gateway.fallbacks of {chain.model!r}"
            if model not in models:
                found.append(
                    f"gateway.fallbacks must be of models, got {model!r}; there are {', '.join(sorted(models))}"
                )
            names = [step.name for step in chain.steps]
            found += [f"{where} have {name!r} twice" for name in dict.fromkeys(names) if names.count(name) > 1]
            for number, step in enumerate(chain.steps):
                found += [f"{where}: steps[{number}] {why}" for why in _wrong(step, model, models, apis)]
        for tenant in self.tenants:
            where = f"gateway.tenants: fallbacks of {tenant.name!r}"
            for name in tenant.fallbacks or ():
                if name not in models and name not in apis:
                    known = ", ".join(sorted([*models, *apis]))
                    found.append(f"{where} must be models and managed APIs, got {name!r}; there are {known}")
                elif name in apis and tenant.is_resident:
                    found.append(f"{where} have {name!r}, a managed API, and the tenant is resident; leave either out")
        return found


def _wrong(step: FallbackStepSpec, model: str, models: Collection[str], apis: Collection[str]) -> list[str]:
    if (step.model is None) == (step.api is None):
        return ["must have either model or api"]
    if step.model == model:
        return ["is the model itself, whose servers are all asked before"]
    if step.model is not None and step.model not in models:
        return [f"must name a model, got {step.model!r}; there are {', '.join(sorted(models))}"]
    if step.api is not None and step.api not in apis:
        return [f"must name one of gateway.managed_apis, got {step.api!r}; there are {', '.join(apis) or 'none'}"]
    return []
