# SPDX-License-Identifier: Apache-2.0
"""A deployment as typed data: the YAML file, the defaults and the cross-checks.

Everything that Triton reads is rendered from a `DeploymentSpec` (`ensemble_configs.render.repository`); nothing
downstream has a default of its own.
"""

from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, model_validator

from ensemble_configs.spec.base import Integer, Location, Name, Number, Positive, Spec, is_name
from ensemble_configs.spec.deployment_checks import RateLimiterPool, find_clashes
from ensemble_configs.spec.engine.embedding_spec import EmbeddingModelSpec
from ensemble_configs.spec.gateway_spec import GatewaySpec
from ensemble_configs.spec.model_spec import ExtraModelSpec, ModelSpec
from ensemble_configs.spec.observability_spec import LogsSpec, TracingSpec, adapter_parameters
from ensemble_configs.spec.release_spec import ReleaseSpec
from ensemble_configs.spec.strict_yaml import load_yaml
from ensemble_configs.spec.triton_spec import TritonSpec
from ensemble_configs.spec.validation import validate
from trireme.base.errors import SpecError


class MachineSpec(Spec):
    """Resources that the models have to share; without it, those of the machine that is asked."""

    host_memory_gib: Annotated[Number, Field(gt=0, le=1e6)] | None = Field(
        default=None, description="host memory that the models share"
    )
    gpu: str | None = Field(default=None, description="a name that `trireme plan` knows: h100, l40s, ...")
    gpu_memory_gib: Annotated[Number, Field(gt=0, le=1e5)] | None = Field(default=None, description="of each GPU")
    num_gpus: Annotated[Integer, Field(ge=0, le=1024)] | None = Field(
        default=None, description="GPUs that the models share"
    )


class DeploymentSpec(Spec):
    """A deployment file. With one model, the model's fields may stand beside `name`; several stand in `models`."""

    name: Name = Field(description="also the folder under build/")
    triton: TritonSpec = TritonSpec()
    models: tuple[ModelSpec, ...] = Field(min_length=1)
    embedding_models: tuple[EmbeddingModelSpec, ...] = Field(
        default=(), description="models that make embeddings, beside the language models"
    )
    extra_models: tuple[ExtraModelSpec, ...] = Field(
        default=(), description="Triton models of your own, beside the language models"
    )
    rate_limiter: tuple[RateLimiterPool, ...] = Field(
        default=(), description="the resources of Triton's rate limiter; one that is not named here has none"
    )
    machine: MachineSpec = MachineSpec()
    tracing: TracingSpec | None = Field(default=None, description="none: no spans are made")
    logs: LogsSpec = LogsSpec()
    gateway: GatewaySpec = GatewaySpec()
    replicas: Positive = Field(default=1, le=10_000, description="servers of this kind, for Helm")

    @model_validator(mode="before")
    @classmethod
    def _take_single_model(cls, data: object) -> object:
        if not _is_flat(data):
            return data
        assert isinstance(data, dict)
        own = {key: value for key, value in data.items() if key in cls.model_fields}
        model = {key: value for key, value in data.items() if key not in own}
        if not model:
            raise ValueError("there is no model; name several in models, or set tokenizer and engine for one")
        name = own.get("name")  # one that is wrong is told of once
        return own | {"models": [{"prefix": "", **({"name": name} if is_name(name) else {}), **model}]}

    @classmethod
    def of_one(cls, **fields: object) -> "DeploymentSpec":
        """Return a deployment of one model, its fields given as in a file."""
        return cls.model_validate(fields)

    @classmethod
    def shown_location(cls, location: Location, data: object) -> Location:
        """Return a location without `models.0` for a file with one model, and with the model's name for several."""
        match location:
            case ("models", int(), *rest) if _is_flat(data):
                return tuple(rest)
            case ("models", int(number), *rest) if isinstance(data, dict):
                model = data["models"][number]
                name = model.get("name") if isinstance(model, dict) else None
                return ("models", name if isinstance(name, str) else number, *rest)
        return location

    @model_validator(mode="after")
    def _models_get_along(self) -> "DeploymentSpec":
        clashes = find_clashes(self.models, self.extra_models, self.rate_limiter, self.embedding_models)
        clashes += self.gateway.find_clashes(
            [model.name for model in self.models], embedding_models=[model.name for model in self.embedding_models]
        )
        if clashes:
            raise ValueError("; ".join(clashes))
        return self

    @property
    def releases(self) -> tuple[ReleaseSpec, ...]:
        """Return the releases of every model in the deployment."""
        return tuple(release for model in self.models for release in model.releases)

    @property
    def adapter_parameters(self) -> dict[str, str]:
        """Return the parameters that every adapter reads beside its release."""
        return adapter_parameters(self.tracing, self.logs)

    @property
    def model(self) -> ModelSpec:
        """Return the only model of the deployment.

        Raises:
            SpecError: there are several.
        """
        if len(self.models) > 1:
            names = ", ".join(model.name for model in self.models)
            raise SpecError(f"{self.name} has the models {names}; this is for a deployment of one", field="models")
        return self.models[0]

    def with_model(self, **changes: object) -> "DeploymentSpec":
        """Return the deployment with other fields of the only model, which are not checked again."""
        return self.model_copy(update={"models": (self.model.model_copy(update=changes),)})


def _is_flat(data: object) -> bool:
    return isinstance(data, dict) and "models" not in data


def load_deployment(path: Path) -> DeploymentSpec:
    """Read a deployment file; relative paths in it become absolute, from the file's own folder.

    Raises:
        SpecError: no such file, not YAML, an unknown or missing key, a wrong type or a clash. The error names each.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as exc:
        raise SpecError(f"cannot read the deployment file {path}: {exc.strerror}", file=path) from exc
    except UnicodeDecodeError as exc:
        raise SpecError(f"{path} is not UTF-8 text: {exc.reason} at byte {exc.start}", file=path) from exc
    try:
        data = load_yaml(text)
    except (yaml.YAMLError, RecursionError) as exc:
        raise SpecError(f"{path} is not YAML: {' '.join(str(exc).split())}", file=path) from exc
    if not isinstance(data, dict):
        raise SpecError(
            f"{path} must hold keys and values, such as 'name: demo', but holds {type(data).__name__}", file=path
        )
    return validate(DeploymentSpec, data, source=path)


def override_triton(spec: DeploymentSpec, **changes: object) -> DeploymentSpec:
    """Return the deployment with other settings of its server, checked again; None leaves a setting as it is.

    Raises:
        SpecError: the result is not valid.
    """
    triton = spec.triton.model_dump() | {name: value for name, value in changes.items() if value is not None}
    return spec.model_copy(update={"triton": validate(TritonSpec, triton, source=Path("command line"))})
