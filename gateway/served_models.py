# SPDX-License-Identifier: Apache-2.0
"""The models that callers may name, and the Triton model that answers for each."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from clients.openai_api.api_error import ApiError
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.model_names import ROUTING_MODELS
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

    def get(self, name: str | None) -> ServedModel:
        """Return a model; without a name the only one that there is.

        Raises:
            ApiError: there is no such model, or no name and several models.
        """
        if name is None and len(self._models) == 1:
            return next(iter(self._models.values()))
        known = ", ".join(self._models)
        if name is None:
            raise ApiError(f"model is missing; there are {known}", code="missing_field", param="model")
        if name not in self._models:
            raise ApiError(
                f"model {name[:64]!r} is not served here; there are {known}",
                code="model_not_found",
                param="model",
                status=404,
            )
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
