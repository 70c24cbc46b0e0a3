# SPDX-License-Identifier: Apache-2.0
"""Changes of a deployment when a release of one of its models comes, is promoted or goes: from spec to spec.

Nothing is served here. Each step gives a whole deployment that was checked like a file, so that what a running server
goes through is what it could be started with at any moment.
"""

from collections.abc import Mapping
from pathlib import Path

import yaml

from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.model_spec import ModelSpec, as_release
from ensemble_configs.spec.release_spec import ReleaseSpec
from ensemble_configs.spec.strict_yaml import load_yaml
from ensemble_configs.spec.validation import validate
from trireme.base.errors import SpecError


def model_named(spec: DeploymentSpec, name: str | None) -> ModelSpec:
    """Return the model of that name; with None, the only model of the deployment.

    Raises:
        SpecError: the deployment has no model of that name, or `name` is None and it has several.
    """
    if name is None:
        return spec.model
    for model in spec.models:
        if model.name == name:
            return model
    there = ", ".join(model.name for model in spec.models)
    raise SpecError(f"there is no model {name}; there are: {there}", field="model", value=name)


def release_of(model: ModelSpec, number: int) -> ReleaseSpec:
    """Return the release with that number.

    Raises:
        SpecError: the model has no such release.
    """
    for release in model.releases:
        if release.release == number:
            return release
    there = ", ".join(str(release.release) for release in model.releases)
    raise SpecError(f"{model.name} has no release {number}; it has: {there}", field="release", value=number)


def candidate_from(path: Path, model: ModelSpec, *, above: int = 0) -> ReleaseSpec:
    """Return a release that differs from the stable one in what `path` says, under the next free number.

    Args:
        path: a built release, which then takes the place of the stable one's, or a YAML file with the fields of a
            release that differ.
        above: the highest number that was ever given; a number that was rolled back keeps its meaning.

    Raises:
        SpecError: `path` is neither, or the result is no release.
    """
    if path.is_dir():
        return _derived(model, {"release_dir": path}, above=above, source=path / "manifest.json")
    try:
        changes = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else " ".join(str(exc).split())
        raise SpecError(
            f"cannot read the release {path}: {reason}; name a built release's folder, or a YAML file with what "
            "differs from the stable release",
            file=path,
        ) from exc
    if not isinstance(changes, dict):
        raise SpecError(f"{path} must hold the fields of a release that differ, such as 'engine:'", file=path)
    return _derived(model, changes, above=above, source=path)


def _derived(model: ModelSpec, changes: Mapping[str, object], *, above: int, source: Path) -> ReleaseSpec:
    stable = as_release(model).model_dump(exclude_unset=True)
    number = max(above, *(release.release for release in model.releases)) + 1
    if "release_dir" in changes:  # its folders are those of the new one
        for part in ("engine", "tokenizer"):
            stable[part] = {key: value for key, value in (stable.get(part) or {}).items() if key != "dir"}
    data = _merged({**stable, "release": number}, changes)
    return validate(ReleaseSpec, data, source=source.resolve())


def _merged(old: Mapping[str, object], new: Mapping[str, object]) -> dict[str, object]:
    found = dict(old)
    for key, value in new.items():
        before = found.get(key)
        found[key] = value
        if isinstance(before, dict) and isinstance(value, dict):
            # Another provider has other fields.
            is_other = value.get("provider", before.get("provider")) != before.get("provider")
            found[key] = value if is_other else _merged(before, value)
    return found


def with_candidate(spec: DeploymentSpec, model: ModelSpec, release: ReleaseSpec) -> DeploymentSpec:
    """Return the deployment with `release` beside the others, served by `ensemble_canary`.

    Raises:
        SpecError: the model has a candidate, or the release cannot be served beside the others.
    """
    _refuse_low_number(model, release)
    if model.canary not in (None, release.release):
        raise SpecError(
            f"{model.name} has the candidate {model.canary} already; promote or remove that first",
            field="canary",
            value=model.canary,
        )
    return _with(spec, model, other_releases=_beside(model, release), canary=release.release)


def with_trial(spec: DeploymentSpec, model: ModelSpec, release: ReleaseSpec) -> DeploymentSpec:
    """Return the deployment with `release` beside the others, for requests that name it.

    The server serves on without this release if its engine is lost.

    Raises:
        SpecError: the release cannot be served beside the others.
    """
    _refuse_low_number(model, release)
    on_trial = (*(number for number in model.on_trial if number != release.release), release.release)
    return _with(spec, model, other_releases=_beside(model, release), on_trial=on_trial)


def replaced(spec: DeploymentSpec, model: ModelSpec, release: ReleaseSpec) -> DeploymentSpec:
    """Return the deployment with `release` in the place of the stable one, which goes, and with nothing on trial.

    Raises:
        SpecError: the release cannot be served.
    """
    others = tuple(other for other in model.other_releases if other.release != release.release)
    return _with(spec, model, **_fields(release), other_releases=others, canary=None, on_trial=())


def _beside(model: ModelSpec, release: ReleaseSpec) -> tuple[ReleaseSpec, ...]:
    return (*(other for other in model.other_releases if other.release != release.release), release)


def _refuse_low_number(model: ModelSpec, release: ReleaseSpec) -> None:
    if release.release < model.release:
        # Whoever names no version gets the highest: the stable one would have to go before the candidate could serve.
        raise SpecError(
            f"a candidate's number must be above the stable release's ({model.release}), got {release.release}; name "
            "its folder or file instead, and it gets a new one",
            field="release",
            value=release.release,
        )


def promoted(spec: DeploymentSpec, model: ModelSpec, number: int) -> DeploymentSpec:
    """Return the deployment with release `number` as the stable one, and the old stable one beside it.

    `ensemble_canary` stays as it is.

    Raises:
        SpecError: the model has no such release.
    """
    if number == model.release:
        return spec
    others = tuple(release for release in model.releases if release.release != number)
    return _with(spec, model, **_fields(release_of(model, number)), other_releases=others)


def without_trials(spec: DeploymentSpec, model: ModelSpec) -> DeploymentSpec:
    """Return the deployment with nothing on trial and no `ensemble_canary`; the releases stay."""
    return spec if model.canary is None and not model.on_trial else _with(spec, model, canary=None, on_trial=())


def without_release(spec: DeploymentSpec, model: ModelSpec, number: int) -> DeploymentSpec:
    """Return the deployment without a release that is not the stable one; unchanged if there is no such release.

    Raises:
        SpecError: the release is the stable one.
    """
    if number == model.release:
        raise SpecError(
            f"release {number} of {model.name} is the stable one; promote another first", field="release", value=number
        )
    others = tuple(release for release in model.other_releases if release.release != number)
    if len(others) == len(model.other_releases):
        return spec
    on_trial = tuple(each for each in model.on_trial if each != number)
    canary = None if model.canary == number else model.canary
    return _with(spec, model, other_releases=others, canary=canary, on_trial=on_trial)


def _fields(release: ReleaseSpec) -> dict[str, object]:
    return {name: getattr(release, name) for name in ReleaseSpec.model_fields}


def _with(spec: DeploymentSpec, model: ModelSpec, **changes: object) -> DeploymentSpec:
    """Return the deployment with fields of one model changed, checked again like a file."""
    changed = model.model_copy(update=changes)
    models = [changed if each.name == model.name else each for each in spec.models]
    data = {name: getattr(spec, name) for name in DeploymentSpec.model_fields} | {
        "models": [each.model_dump() for each in models]
    }
    return validate(DeploymentSpec, data, source=Path(f"{spec.name} with other releases of {model.name}"))
