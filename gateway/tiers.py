# SPDX-License-Identifier: Apache-2.0
"""Tiers: names that stand for two models, of which simple requests go to the small one, by stated rules."""

from collections.abc import Iterable

import msgspec

from clients.infer_messages import GenerateRequest
from clients.openai_api.asked import Asked
from ensemble_configs.render.tensors import AS_MANY_AS_FIT
from ensemble_configs.spec.gateway_spec import SimpleSpec, TierSpec
from gateway.access.caller import Caller


class Tiers:
    """The tiers of a gateway."""

    def __init__(self, specs: Iterable[TierSpec] = ()) -> None:
        self._specs = {spec.name: spec for spec in specs}

    def allowed(self, caller: Caller) -> list[TierSpec]:
        """Return the tiers of which a caller may use both models."""
        return [spec for spec in self._specs.values() if caller.may_use(spec.small) and caller.may_use(spec.large)]

    def find(self, name: str | None, caller: Caller) -> TierSpec | None:
        """Return a tier; None: there is none of this name.

        Raises:
            ApiError: 403: one of its models is not for this caller.
        """
        spec = self._specs.get(name or "")
        if spec is not None:
            for model in (spec.small, spec.large):
                caller.check_may_use(model)
        return spec


def model_of(tier: TierSpec, asked: Asked) -> str:
    """Return the model that answers a request to a tier."""
    return tier.small if is_simple(asked, tier.simple) else tier.large


def is_simple(asked: Asked, rules: SimpleSpec) -> bool:
    """Return whether every rule says that a request is simple."""
    request = asked.requests[0]
    messages = request.messages or []
    most_tokens = 0 if request.max_tokens == AS_MANY_AS_FIT else request.max_tokens
    return not (
        len(asked.requests) * asked.n > 1
        or _num_chars(request) > rules.max_prompt_chars
        or len(messages) > rules.max_messages
        or (rules.max_answer_tokens is not None and most_tokens > rules.max_answer_tokens)
        or (request.tools and not rules.tools)
        or (request.guided_decoding_guide_type and not rules.schemas)
        or _has_word(asked, rules.words_of_others)
    )


def _num_chars(request: GenerateRequest) -> int:
    """Return the length of all that a model has to read: the prompt, the tools, the schema of the answer."""
    num_tools = len(msgspec.json.encode(request.tools)) if request.tools else 0
    return request.num_prompt_chars + num_tools + len(request.guided_decoding_guide or "")


def _has_word(asked: Asked, words: Iterable[str]) -> bool:
    """Return whether the prompt, or the last message, has one of some words; case does not count."""
    request = asked.requests[0]
    last: object = request.text_input
    if request.messages:
        last = request.messages[-1].get("content")
    said = (last if isinstance(last, str) else msgspec.json.encode(last).decode()).casefold()
    return any(word.casefold() in said for word in words)
