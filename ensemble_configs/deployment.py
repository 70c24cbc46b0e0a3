# SPDX-License-Identifier: Apache-2.0
"""What one deployment serves, as typed data: the YAML file, the defaults and the cross-checks.

Everything that Triton reads is rendered from a `DeploymentSpec` (`ensemble_configs.repository`); nothing downstream
has a default of its own.
"""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar, get_args

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from ensemble_configs.admission_spec import AdmissionSpec, SloSpec
from ensemble_configs.engine_specs import EngineSpec
from ensemble_configs.errors import SpecError
from ensemble_configs.spec import Integer, Number, Port, Positive, Spec

Model = TypeVar("Model", bound=BaseModel)


class TokenizerSpec(Spec):
    """The tokenizer of both ends of the ensemble."""

    dir: Path = Field(description="folder with tokenizer.json")
    add_special_tokens: bool = Field(default=True, description="put the tokenizer's own tokens (BOS) around a prompt")
    skip_special_tokens: bool = Field(default=True, description="leave special tokens out of the text")


class TritonSpec(Spec):
    """The server around the models; ports may be overridden on the command line."""

    host: str = Field(default="127.0.0.1", description="address to listen on")
    http_port: Port = 8000
    grpc_port: Port = 8001
    metrics_port: Port = 8002
    triton_max_batch_size: Positive = Field(
        default=256, description="prompts that Triton lets through in one request; a request may hold 128 of them"
    )
    keepalive_time_ms: Positive = Field(
        default=10_000, description="silence on a gRPC connection after which the server asks whether its peer is there"
    )
    keepalive_timeout_ms: Positive = Field(
        default=5_000, description="how long it waits for the answer before it ends the connection and its streams"
    )
    hang_timeout_s: Number = Field(
        default=10.0, ge=1, description="a server or model process that is silent for so long is taken for dead"
    )
    max_restarts: Integer = Field(
        default=5, ge=0, description="of a server that died, within restart_window_s; after that `trireme serve` ends"
    )
    restart_window_s: Number = Field(default=600.0, gt=0)
    restart_backoff_s: Number = Field(
        default=1.0,
        ge=0,
        description="before the second restart in the window, doubled for each one more; the first is at once",
    )

    @model_validator(mode="after")
    def _ports_differ(self) -> "TritonSpec":
        ports = [self.http_port, self.grpc_port, self.metrics_port]
        if len(set(ports)) < len(ports):
            raise ValueError(f"http_port, grpc_port and metrics_port must differ, got {ports}")
        return self


class ResponseSpec(Spec):
    """Defaults of requests that do not say."""

    exclude_input_in_output: bool = Field(
        default=False, description="upstream's default: a whole response has the prompt"
    )
    max_chunk_delay_ms: Number = Field(
        default=10.0,
        ge=0,
        description="how long tokens may wait to leave together; the first and the last of a stream never do",
    )
    target_chunks_per_s: Number = Field(
        default=0.0,
        ge=0,
        description="of all streams; n streams wait n / this, at most max_chunk_delay_ms; 0: always that long",
    )


class BlsSpec(Spec):
    """What `tensorrt_llm_bls` does in another way than `ensemble`."""

    accumulate_tokens: bool = Field(
        default=False, description="upstream's name: each response of a stream holds its whole text so far"
    )


class ReleaseSpec(Spec):
    """What may differ between two releases that one server holds: `<version>/release.json` of the model repository.

    With `release_dir`, a built release (`ensemble_configs.release_manifest`), `engine.dir` and `tokenizer.dir` need not
    be named: they are its subfolders `engine` and `tokenizer`.
    """

    release: Positive
    release_dir: Path | None = Field(
        default=None, description="a built release: its manifest is checked at every start, and must be there"
    )
    release_public_key: Path | None = Field(
        default=None, description="PEM file with an Ed25519 key; the built release must be signed with it"
    )
    tokenizer: TokenizerSpec
    engine: EngineSpec
    draft_engine: EngineSpec | None = Field(
        default=None, description="drafts for requests with num_draft_tokens; for an engine that verifies drafts"
    )
    admission: AdmissionSpec | None = Field(
        default=None, description="who runs next and who is refused; none: the engine's own order, and all that come"
    )
    slo: SloSpec = SloSpec()
    responses: ResponseSpec = ResponseSpec()
    bls: BlsSpec = BlsSpec()

    @model_validator(mode="before")
    @classmethod
    def _take_folders_of_release(cls, data: object) -> object:
        if not isinstance(data, dict) or not isinstance(data.get("release_dir"), str | Path):
            return data
        folders = {
            part: {"dir": Path(data["release_dir"]) / part} | (data.get(part) or {})
            for part in ("engine", "tokenizer")
            if isinstance(data.get(part), dict | None)
        }
        return data | folders

    @model_validator(mode="after")
    def _engine_is_of_release(self) -> "ReleaseSpec":
        if self.release_dir is not None and getattr(self.engine, "dir", None) != self.release_dir / "engine":
            raise ValueError("engine.dir must be the folder engine of release_dir; leave it out")
        return self


class DeploymentSpec(ReleaseSpec):
    """One deployment file."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", description="also the folder under build/")]
    release: Positive = 1
    triton: TritonSpec = TritonSpec()


def load_deployment(path: Path) -> DeploymentSpec:
    """Read a deployment file; relative paths in it become absolute, from the file's own folder.

    Raises:
        SpecError: no such file, not YAML, an unknown or missing key, a wrong type or a clash. It names each.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as exc:
        raise SpecError(f"cannot read the deployment file {path}: {exc.strerror}", file=path) from exc
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as exc:
        raise SpecError(f"{path} is not YAML: {' '.join(str(exc).split())}", file=path) from exc
    if not isinstance(data, dict):
        raise SpecError(
            f"{path} must hold keys and values, such as 'name: demo', but holds {type(data).__name__}", file=path
        )
    return validate(DeploymentSpec, data, source=path)


def validate(model: type[Model], data: object, *, source: Path) -> Model:
    """Check data read from `source` against a spec.

    Raises:
        SpecError: every finding by its path, one line.
    """
    try:
        return model.model_validate(data, context={"base_dir": source.parent})
    except ValidationError as exc:
        raise SpecError(
            f"{source}: {'; '.join(_finding(error, model) for error in exc.errors())}", file=source
        ) from exc


_MAX_SHOWN_LEN = 80  # of a wrong value


def _finding(error: object, model: type[BaseModel]) -> str:
    assert isinstance(error, dict)
    where = ".".join(str(part) for part in error["loc"])
    value = error.get("input")
    is_plain = isinstance(value, str | int | float | bool)
    got = repr(value) if is_plain else ""
    got = got if len(got) <= _MAX_SHOWN_LEN else f"{got[:_MAX_SHOWN_LEN]}..."
    shown = (f" (got {got})" if is_plain else "") + (_allowed(error["loc"], model) if _is_unknown(error) else "")
    message = error["msg"].removeprefix("Value error, ")
    return f"{where}: {message[:1].lower()}{message[1:]}{shown}" if where else f"{message}{shown}"


def _is_unknown(error: dict[str, object]) -> bool:
    return error["type"] == "extra_forbidden"


def _allowed(loc: tuple[str | int, ...], model: type[BaseModel]) -> str:
    """For an unknown field: the one that was meant, or else all that could stand there."""
    *parents, name = loc
    fields = sorted({field for part in _models_at(parents, model) for field in part.model_fields})
    meant = difflib.get_close_matches(str(name), fields, n=1, cutoff=0.75)
    return f"; did you mean {meant[0]}?" if meant else f"; allowed here: {', '.join(fields)}"


def _models_at(parents: Sequence[str | int], model: type[BaseModel]) -> list[type[BaseModel]]:
    """Which models a location leads to; in a union of models it names the tag of one."""
    models = [model]
    for parent in parents:
        tagged = [each for each in models if any(parent in get_args(f.annotation) for f in each.model_fields.values())]
        if len(models) > 1 and tagged:
            models = tagged
            continue
        fields = [field for each in models for name, field in each.model_fields.items() if name == parent]
        models = [part for field in fields for part in _models_in(field.annotation)] or models
    return models


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def override_triton(spec: DeploymentSpec, **changes: object) -> DeploymentSpec:
    """The deployment with other settings of its server, checked again; None leaves a setting as it is.

    Raises:
        SpecError: the result is not valid.
    """
    triton = spec.triton.model_dump() | {name: value for name, value in changes.items() if value is not None}
    return spec.model_copy(update={"triton": validate(TritonSpec, triton, source=Path("command line"))})
