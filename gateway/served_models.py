# SPDX-License-Identifier: Apache-2.0
"""The models that callers may name, and the Triton model that answers for each."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from clients.openai_api.api_error import ApiError
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.model_names import ROUTING_MODELS
from gateway.access.caller import Caller
from trireme.base.errors import SpecError


class ServedModel(NamedTuple):
    """A model as callers know it.

    Attributes:
        name: that callers write into `model`.
        triton_model: Triton's name of the model from text to text.
        max_seq_len: tokens of prompt and answer together; None: the deployment does not say.
    """

    name: str
    triton_model: str
    max_seq_len: int | None = None


class ServedModels:
    """The models of a gateway, by the names that callers write."""

    def __init__(self, models: Iterable[ServedModel]) -> None:
        self._models = {model.name: model for model in models}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    def allowed(self, caller: Caller) -> list[ServedModel]:
        """Return the models that a caller may use."""
        return [model for model in self if caller.may_use(model.name)]

    def get(self, name: str | None, caller: Caller) -> ServedModel:
        """Return a model; without a name the only one that the caller may use.

        Raises:
            ApiError: there is no such model, it is not for this caller, or there is no name and several models.
        """
        allowed = self.allowed(caller)
        if name is None and len(allowed) == 1:
            return allowed[0]
        known = ", ".join(model.name for model in allowed) or "none for this key"
        if name is None:
            raise ApiError(f"model is missing; there are {known}", code="missing_field", param="model")
        if name not in self._models:
            raise ApiError(
                f"model {name[:64]!r} is not served here; there are {known}",
                code="model_not_found",
                param="model",
                status=404,
            )
        caller.check_may_use(name)
        return self._models[name]


def models_of(deployment: DeploymentSpec) -> ServedModels:
    """Return the models of a deployment: each by its name, behind its endpoint `ensemble`, or else `tensorrt_llm_bls`.

    Raises:
        SpecError: a model has neither.
    """
    found = []
    for model in deployment.models:
        step = next((step for step in ROUTING_MODELS if step in model.endpoints), None)
        if step is None:
            raise SpecError(
                f"model {model.name} of {deployment.name} cannot be served by the gateway: add "
                f"{' or '.join(ROUTING_MODELS)} to its endpoints",
                field="endpoints",
            )
        found.append(ServedModel(model.name, model.triton_prefix + step, model.engine.max_seq_len))
    return ServedModels(found)
