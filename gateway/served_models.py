# SPDX-License-Identifier: Apache-2.0
"""The models that callers may name, the Triton model that answers for each, and how their answers are read."""

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from clients.infer_messages import PINNING_MODEL, GenerateRequest
from clients.openai_api.answer_deltas import Usage
from clients.openai_api.api_error import ApiError
from clients.openai_api.asked import Asked
from clients.openai_api.tool_calls.answer_reader import AnswerReader
from clients.openai_api.tool_calls.call_guide import Guide, call_guide, strict_guide
from clients.openai_api.tool_calls.deltas import DeltaReader
from clients.openai_api.tool_calls.reader_choice import Style, call_reader, style_of
from clients.openai_api.tool_calls.reasoning import END, ReasoningReader, begins_inside
from ensemble_configs.chat.chat_template import load_chat_template
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.engine.embedding_spec import EmbeddingModelSpec
from ensemble_configs.spec.engine.engine_spec import EngineSpec
from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from ensemble_configs.spec.gateway_spec import TierSpec
from ensemble_configs.spec.model_names import ROUTING_MODELS
from ensemble_configs.spec.model_spec import ModelSpec
from ensemble_configs.spec.price_spec import PriceSpec
from ensemble_configs.spec.release_spec import TokenizerSpec
from gateway.access.caller import Caller
from gateway.ledger.prices import cost_nano_usd
from gateway.tiers import Tiers
from trireme.base.errors import ServingError, SpecError

RELEASE_MARK = "@"  # no name of a model has it


class ServedModel(NamedTuple):
    """A model as callers know it.

    Attributes:
        name: that callers write into `model`.
        triton_model: Triton's name of the model from text to text.
        max_seq_len: tokens of prompt and answer together; None: the deployment does not say.
        tool_style: how the model writes calls of tools; None: in no way that is read here.
        is_reasoning: answers may begin with reasoning.
        begins_inside: the prompt ends within the reasoning.
        has_admission: the server knows tenants and classes.
        price: of its tokens; None: they cost nothing.
        tokenizer: of the model; None: nobody knows the texts of its tokens.
        is_decoupled: requests may stream.
        pinning_model: Triton's name of the model that serves the release which a request names; "": there is none.
        release: that answers, and no other; None: the server says which.
        embedding: of a model that makes embeddings; None: the model writes text.
        guides_calls: the engine may hold calls to their schemas once they have begun.
    """

    name: str
    triton_model: str
    max_seq_len: int | None = None
    tool_style: Style | None = None
    is_reasoning: bool = False
    begins_inside: bool = False
    has_admission: bool = False
    price: PriceSpec | None = None
    pinning_model: str = ""
    tokenizer: TokenizerSpec | None = None
    is_decoupled: bool = True
    release: int | None = None
    embedding: EmbeddingModelSpec | None = None
    guides_calls: bool = False

    def on(self, release: int) -> "ServedModel":
        """Return the model as one of its releases.

        Raises:
            ApiError: the deployment has nothing that serves the release which a request names.
        """
        if not self.pinning_model:
            raise ApiError(
                f"model: no release of {self.name} can be named: its deployment has no endpoint {PINNING_MODEL} "
                f"whose responses are deltas; write {self.name}, or add the endpoint",
                code="unsupported_parameter",
                param="model",
            )
        return self._replace(release=release)

    def cost_nano_usd(self, usage: Usage) -> int:
        """Return what tokens cost, in billionths of a US dollar."""
        return cost_nano_usd(self.price, usage)

    def guide(self, asked: Asked) -> Guide | None:
        """Return the guide of an answer that must be calls of tools, or whose calls must fit.

        None: it need not be guided, or the model writes calls in no known style.
        """
        if self.tool_style is None:
            return None
        how = {
            "is_single": asked.max_calls == 1,
            "is_reasoning": self.is_reasoning,
            "begins_inside": self.begins_inside,
        }
        if asked.tool_choice is not None:
            return call_guide(self.tool_style, asked.tools, **how)
        if not asked.strict_tools or not self.guides_calls or any(map(_goes_with_no_guide, asked.requests)):
            return None
        return strict_guide(self.tool_style, asked.tools, asked.strict_tools, **how)

    def reader(self, asked: Asked) -> AnswerReader:
        """Return the reader of one answer.

        Raises:
            ApiError: there are tools, and the model writes calls in no way that is read here; or log probabilities are
                asked for, and the answer may have other parts than its content, or nobody knows the model's tokens.
        """
        if asked.log_probs and (self.tokenizer is None or (self.is_reasoning and asked.is_chat)):
            why = "its tokens are not known here" if self.tokenizer is None else "it reasons before it answers"
            raise ApiError(f"logprobs: {self.name} tells none, for {why}; leave logprobs out",
                           code="unsupported_parameter", param="logprobs")  # fmt: skip
        readers: list[DeltaReader] = []
        if self.is_reasoning and asked.is_chat:
            readers.append(ReasoningReader(begins_inside=self.begins_inside))
        if asked.tools:
            if self.tool_style is None:
                raise ApiError(
                    f"tools: {self.name} writes calls in no style that is read here ({', '.join(Style)}); leave "
                    "tools out, or read calls from the text",
                    code="unsupported_parameter",
                    param="tools",
                )
            readers.append(call_reader(self.tool_style, asked.tools, max_calls=asked.max_calls))
        return AnswerReader(*readers)


class ServedModels:
    """The models of a gateway, by the names that callers write.

    Args:
        aliases: other names of models.
        tiers: names that stand for two models.
    """

    def __init__(
        self,
        models: Iterable[ServedModel],
        aliases: Mapping[str, str] = MappingProxyType({}),
        tiers: Iterable[TierSpec] = (),
    ) -> None:
        self._models = {model.name: model for model in models}
        self._aliases = dict(aliases)
        self.tiers = Tiers(tiers)

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    @property
    def texts(self) -> list[ServedModel]:
        """Return the models that write text."""
        return [model for model in self if model.embedding is None]

    def allowed(self, caller: Caller) -> list[ServedModel]:
        """Return the models that a caller may use."""
        return [model for model in self if caller.may_use(model.name)]

    def allowed_aliases(self, caller: Caller) -> dict[str, ServedModel]:
        """Return the models that a caller may use by their other names."""
        return {alias: self._models[name] for alias, name in self._aliases.items() if caller.may_use(name)}

    def get_text(self, name: str | None, caller: Caller) -> ServedModel:
        """Return a model that writes text, as `get`.

        Raises:
            ApiError: as `get`, or the model makes embeddings.
        """
        model = self.get(name, caller)
        if model.embedding is not None:
            raise ApiError(
                f"model {model.name!r} makes embeddings, and writes no text; ask it at /v1/embeddings",
                code="unsupported_model",
                param="model",
            )
        return model

    def get_embedding(self, name: str | None, caller: Caller) -> ServedModel:
        """Return a model that makes embeddings, as `get`.

        Raises:
            ApiError: as `get`, or the model writes text.
        """
        model = self.get(name, caller, makes_embeddings=True)
        if model.embedding is None:
            known = ", ".join(each.name for each in self.allowed(caller) if each.embedding is not None)
            hint = f"there are {known}" if known else "ask a server of an embedding model"
            raise ApiError(
                f"model {model.name!r} writes text, and makes no embeddings; {hint}",
                code="unsupported_model",
                param="model",
            )
        return model

    def get(self, name: str | None, caller: Caller, *, makes_embeddings: bool = False) -> ServedModel:
        """Return a model by its name or an alias; without one the only model of its kind that the caller may use.

        A name may say a release, as in `chat@7`.

        Raises:
            ApiError: there is no such model, it is not for this caller, there is no name and several models, or what
                is behind the name is no release.
        """
        allowed = self.allowed(caller)
        of_kind = [model for model in allowed if (model.embedding is not None) == makes_embeddings]
        if name is None and len(of_kind) == 1:
            return of_kind[0]
        if name is None and makes_embeddings and not of_kind and len(allowed) == 1:
            return allowed[0]  # which is refused by its name
        known = ", ".join(model.name for model in allowed) or "none for this key"
        if name is None:
            raise ApiError(f"model is missing; there are {known}", code="missing_field", param="model")
        name, mark, release = name.partition(RELEASE_MARK)
        name = self._aliases.get(name, name)
        if name not in self._models:
            raise ApiError(
                f"model {name[:64]!r} is not served here; there are {known}",
                code="model_not_found",
                param="model",
                status=404,
            )
        caller.check_may_use(name)
        model = self._models[name]
        return model.on(_number_of(release)) if mark else model


def _goes_with_no_guide(request: GenerateRequest) -> bool:
    """Return whether a request has a guide, or says of its end what no guide of ours knows."""
    return request.guided_decoding_guide_type is not None or bool(request.min_tokens) or request.end_id is not None


def _number_of(release: str) -> int:
    if re.fullmatch(r"[0-9]{1,9}", release) and int(release) > 0:
        return int(release)
    raise ApiError(
        f"model: behind {RELEASE_MARK} stands the number of a release, a whole number from 1; got {release[:16]!r}",
        code="invalid_value",
        param="model",
    )


def _guides_calls(engine: EngineSpec) -> bool:
    """Return whether an engine takes structural tags; one that lacks a file for them says so when it is asked."""
    if isinstance(engine, PyTorchEngineSpec):
        return engine.guided_decoding_backend == "xgrammar"
    return isinstance(engine, OpenVinoEngineSpec | VllmEngineSpec)


def models_of(deployment: DeploymentSpec) -> ServedModels:
    """Return the models of a deployment: each by its name, behind its endpoint `ensemble`, or else `tensorrt_llm_bls`.

    Raises:
        SpecError: a model has neither.
    """
    models = [_served(model, deployment.name) for model in deployment.models]
    models += [_served_embedding(model) for model in deployment.embedding_models]
    return ServedModels(models, deployment.gateway.aliases, deployment.gateway.tiers)


def _served_embedding(model: EmbeddingModelSpec) -> ServedModel:
    price = None if model.price is None else PriceSpec(input=model.price.input, output=0.0)
    return ServedModel(model.name, model.name, model.max_tokens, price=price, embedding=model)


def _served(model: ModelSpec, deployment: str) -> ServedModel:
    step = next((step for step in ROUTING_MODELS if step in model.endpoints), None)
    if step is None:
        raise SpecError(
            f"model {model.name} of {deployment} cannot be served by the gateway: add {' or '.join(ROUTING_MODELS)} to "
            "its endpoints",
            field="endpoints",
        )
    is_pinning = PINNING_MODEL in model.endpoints and not model.bls.accumulate_tokens
    if step == PINNING_MODEL and not is_pinning:
        raise SpecError(
            f"model {model.name} of {deployment} cannot be served by the gateway: each response of {step} has the "
            "whole text so far; leave bls.accumulate_tokens out, or add ensemble to its endpoints",
            field="bls.accumulate_tokens",
        )
    served = ServedModel(
        model.name,
        model.triton_prefix + step,
        model.engine.max_seq_len,
        has_admission=model.admission is not None,
        price=model.price,
        pinning_model=model.triton_prefix + PINNING_MODEL if is_pinning else "",
        tokenizer=model.tokenizer,
        is_decoupled=model.decoupled,
        guides_calls=_guides_calls(model.engine),
    )
    try:
        template = load_chat_template(model.tokenizer.dir)
        prompt = "" if template is None else template.render([{"role": "user", "content": "Hi"}])
    except ServingError:  # the server says so to whoever sends messages
        return served
    if template is None:
        return served
    return served._replace(
        tool_style=style_of(template.source),
        is_reasoning=END in template.source,
        begins_inside=begins_inside(prompt),
    )
