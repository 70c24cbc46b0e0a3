# SPDX-License-Identifier: Apache-2.0
"""The chains of a gateway: for each model and caller, what answers, and what stands in for it."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from ensemble_configs.spec.gateway_spec import FallbackStepSpec, GatewaySpec, TenantSpec
from gateway.access.caller import Caller
from gateway.answer import Step
from gateway.attempt import Answerer, ModelAnswerer
from gateway.cache.cached_answerer import AnswerCache, CachedAnswerer
from gateway.fallback.managed_api import ManagedApi
from gateway.served_models import ServedModel

_NO_APIS: Mapping[str, ManagedApi] = MappingProxyType({})


class Chains:
    """The chains of a gateway.

    Args:
        answerers: models of the deployment.
        spec: says what stands in for each, and for which tenants.
        apis: managed APIs by their names.
        cache: keeps the answers of the models that are asked for; None: nothing is kept.
    """

    def __init__(
        self,
        answerers: Iterable[ModelAnswerer],
        spec: GatewaySpec | None = None,
        apis: Mapping[str, ManagedApi] = _NO_APIS,
        cache: AnswerCache | None = None,
    ) -> None:
        spec = spec or GatewaySpec()
        self._models: dict[str, ModelAnswerer] = {each.name: each for each in answerers}
        self._apis, self._cache = apis, cache
        self._fallbacks = {chain.model: chain for chain in spec.fallbacks}
        self._tenants = {tenant.name: tenant for tenant in spec.tenants}

    def answerer(self, model: str) -> Answerer:
        """Return what answers for a model of the deployment, by its name."""
        return self._models[model]

    def of(self, model: ServedModel, caller: Caller) -> list[Step]:
        """Return the steps for a caller's request: the model, and what the caller's tenant allows in its place.

        A release that is named answers itself: nothing stands in for it, and no kept answer of another one.
        """
        if model.release is not None:
            return [Step(self._models[model.name].on(model))]
        first = self._first(model, caller)
        chain = self._fallbacks.get(model.name)
        if chain is None:
            return [Step(first)]
        tenant = self._tenants.get(caller.tenant)
        steps = [Step(first, chain.first_token_s)]
        for spec in chain.steps:
            answerer = self._answerer(spec, caller, tenant)
            if answerer is not None:
                steps.append(Step(answerer, spec.first_token_s))
        return steps if len(steps) > 1 else [Step(first)]

    def _first(self, model: ServedModel, caller: Caller) -> Answerer:
        answerer = self._models[model.name]
        if self._cache is None:
            return answerer
        owner = f"tenant {caller.tenant}" if caller.tenant else f"key {caller.key_id}"
        semantic = self._cache.semantic
        if semantic is not None and not semantic.is_for(caller.tenant):
            semantic = None
        return CachedAnswerer(answerer, self._cache, owner=owner, semantic=semantic)

    def _answerer(self, step: FallbackStepSpec, caller: Caller, tenant: TenantSpec | None) -> Answerer | None:
        """Return what answers in a step; None: it is not for this caller."""
        allowed = None if tenant is None else tenant.fallbacks
        if allowed is not None and step.name not in allowed:
            return None
        if step.model is not None:
            return self._models[step.model] if caller.may_use(step.model) else None
        # The prompt leaves: for a tenant alone that has said so.
        if allowed is None or tenant is None or tenant.is_resident:
            return None
        return self._apis[step.name]
