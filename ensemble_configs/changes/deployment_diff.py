# SPDX-License-Identifier: Apache-2.0
"""The effect on a running server's models when one deployment takes the place of another by Triton's load calls.

The rules are Triton 2.51's, and a test asks it. A config that differs in `version_policy` alone adds and drops versions
and touches no other. One that differs in `instance_group` alone keeps the instances that it still has and starts
others; those of another part in the rate limiter are others. Any other difference loads every version anew, as a
difference in the files of a version does with that one; the old one serves until the new one is ready.
"""

import dataclasses
import enum
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from ensemble_configs.render.embedding_config import EMBEDDING_VERSION, embedding_message
from ensemble_configs.render.launch_flags import launch_flags
from ensemble_configs.render.model_configs import GENERATED, Message, model_messages
from ensemble_configs.render.repository import render_repository
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.model_names import GRAPH, STEPS
from ensemble_configs.spec.model_spec import ModelSpec, as_release
from ensemble_configs.spec.release_spec import ReleaseSpec

_KEPT_IN_PLACE = frozenset({"version_policy", "instance_group"})
_ROOT = Path("/models")  # both lie there, so that only what differs in them differs


class Kind(enum.StrEnum):
    """Actions of Triton on a model."""

    ADDED = "added"
    REMOVED = "removed"
    RELOADED = "loaded anew"
    RESTARTED = "instances started anew"
    SCALED = "instances added or ended"
    VERSIONS = "versions added or dropped"


@dataclasses.dataclass(frozen=True)
class ModelChange:
    """The change of one Triton model.

    Attributes:
        loaded: versions that are loaded, or loaded anew beside themselves.
        dropped: versions that are unloaded.
        why: what differs, for people.
    """

    name: str
    kind: Kind
    loaded: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    why: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class DeploymentDiff:
    """The difference between an old deployment and a new one.

    Attributes:
        restarts: what only another start of the server changes; with any, all models are loaded anew.
        changed_releases: releases whose content differs under the same number, as "model release n".
    """

    changes: tuple[ModelChange, ...]
    restarts: tuple[str, ...]
    changed_releases: tuple[str, ...]

    def loads_engine(self, model: ModelSpec, release: int) -> bool:
        """Return whether the change loads the engine of a release of the new deployment."""
        name = f"{model.triton_prefix}tensorrt_llm"
        return any(change.name == name and release in change.loaded for change in self.changes)


def compare(old: DeploymentSpec, new: DeploymentSpec) -> DeploymentDiff:
    """Return the difference between two deployments, as Triton sees them."""
    before, after = _triton_models(old), _triton_models(new)
    changes = [ModelChange(name, Kind.REMOVED, dropped=tuple(before[name].releases)) for name in before.keys() - after]
    changes += [ModelChange(name, Kind.ADDED, loaded=tuple(after[name].releases)) for name in after.keys() - before]
    changes += [
        change for name in after.keys() & before if (change := _change(name, before[name], after[name])) is not None
    ]
    return DeploymentDiff(
        changes=tuple(sorted(changes, key=lambda change: _order(change, new, old))),
        restarts=tuple(_flags(old, new)),
        changed_releases=tuple(_changed_releases(old, new)),
    )


def loaded_versions(spec: DeploymentSpec) -> set[tuple[str, int]]:
    """Return the Triton models and versions that a deployment loads."""
    return {(name, number) for name, model in _triton_models(spec).items() for number in model.releases}


def _text(release: ReleaseSpec) -> str:
    """Return a release as JSON, with folders as the deployment names them instead of relative to a repository."""
    return as_release(release).model_dump_json(exclude_none=True)


@dataclasses.dataclass(frozen=True)
class _TritonModel:
    config: Message
    releases: dict[int, str]  # the text of each version that is loaded


def _triton_models(spec: DeploymentSpec) -> dict[str, _TritonModel]:
    found = {}
    for model in spec.models:
        texts = {release.release: _text(release) for release in model.releases}
        messages = model_messages(model, spec.triton, spec.adapter_parameters)
        for step in model.steps:
            config = messages[model.triton_prefix + step]
            versions = _versions(config)
            of_step = {number: "" if step == GRAPH else texts[number] for number in versions}
            found[model.triton_prefix + step] = _TritonModel(config, of_step)
    for embedding in spec.embedding_models:
        text = embedding.model_dump_json(exclude_none=True)
        found[embedding.name] = _TritonModel(
            embedding_message(embedding, spec.adapter_parameters), {EMBEDDING_VERSION: text}
        )
    if spec.extra_models:
        files = render_repository(spec, root=_ROOT, source="")
        for extra in spec.extra_models:
            own = files[Path(extra.name) / "config.pbtxt"].removeprefix(GENERATED)
            folders = [path.name for path in extra.dir.iterdir() if path.name.isdecimal()]
            found[extra.name] = _TritonModel({"text": own}, {int(name): str(extra.dir) for name in sorted(folders)})
    return found


def _versions(config: Message) -> list[int]:
    policy = config["version_policy"]
    assert isinstance(policy, dict)
    return list(policy["specific"]["versions"])


def _change(name: str, old: _TritonModel, new: _TritonModel) -> ModelChange | None:
    added = sorted(new.releases.keys() - old.releases)
    dropped = sorted(old.releases.keys() - new.releases)
    same = sorted(new.releases.keys() & old.releases)
    changed = [number for number in same if old.releases[number] != new.releases[number]]
    keys = [key for key in old.config.keys() | new.config.keys() if old.config.get(key) != new.config.get(key)]
    why = tuple(f"config: {key}" for key in sorted(set(keys) - {"version_policy"}))
    why += tuple(line for number in changed for line in _fields(number, old.releases[number], new.releases[number]))
    is_other = bool(set(keys) - _KEPT_IN_PLACE)
    is_restarted = "instance_group" in keys and _instances(old.config) != _instances(new.config)
    if is_other or is_restarted:
        kind, loaded = (Kind.RELOADED if is_other else Kind.RESTARTED), sorted([*same, *added])
    elif changed:
        kind, loaded = Kind.RELOADED, sorted([*changed, *added])
    elif added or dropped:
        kind, loaded = Kind.VERSIONS, added
    elif keys:
        kind, loaded = Kind.SCALED, []
    else:
        return None
    return ModelChange(name, kind, tuple(loaded), tuple(dropped), why)


def _instances(config: Message) -> list[Message]:
    """Return instance groups without their counts: Triton tells instances apart by the rest."""
    groups = config.get("instance_group", [])
    assert isinstance(groups, list)
    return [{key: value for key, value in group.items() if key != "count"} for group in groups]


def _fields(number: int, old: str, new: str) -> Iterator[str]:
    """Yield the fields of a release that differ, as text for people."""
    before, after = (dict(_leaves(json.loads(text))) if text.startswith("{") else {"dir": text} for text in (old, new))
    for field in sorted(before.keys() | after.keys()):
        if before.get(field) != after.get(field):
            yield f"release {number}: {field} {_shown(before.get(field))} -> {_shown(after.get(field))}"


def _leaves(data: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _leaves(value, f"{prefix}{key}.")
    else:
        yield prefix.removesuffix("."), data


def _shown(value: object) -> str:
    return "unset" if value is None else str(value)


def _flags(old: DeploymentSpec, new: DeploymentSpec) -> Iterator[str]:
    before, after = launch_flags(old), launch_flags(new)
    yield from (f"--{name}={value} goes" for name, value in before if (name, value) not in after)
    yield from (f"--{name}={value} comes" for name, value in after if (name, value) not in before)


def _changed_releases(old: DeploymentSpec, new: DeploymentSpec) -> Iterator[str]:
    before = {
        (model.triton_prefix, release.release): _text(release) for model in old.models for release in model.releases
    }
    for model in new.models:
        for release in model.releases:
            text = before.get((model.triton_prefix, release.release))
            if text is not None and text != _text(release):
                yield f"{model.name} release {release.release}"


def _order(change: ModelChange, new: DeploymentSpec, old: DeploymentSpec) -> tuple[int, str]:
    """Return the sort key of a change: models and steps as the deployment has them, then the user's own by name."""
    names = [model.triton_prefix + step for spec in (new, old) for model in spec.models for step in STEPS]
    return (names.index(change.name) if change.name in names else len(names), change.name)
