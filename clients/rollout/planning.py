# SPDX-License-Identifier: Apache-2.0
"""The parts of a plan that follow from a command line and from what a server serves; nothing is begun here."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from clients.rollout.records.rollout_plan import Mode
from clients.rollout_gate.gate_spec import GateSpec
from ensemble_configs.changes.release_changes import candidate_from, release_of
from ensemble_configs.spec.model_spec import ModelSpec
from ensemble_configs.spec.strict_yaml import load_yaml
from ensemble_configs.spec.validation import validate
from trireme.base.errors import RequestError, SpecError

Fields = dict[str, Any]
_MAX_CANDIDATES = 8


def candidates(named: Sequence[str], status: Mapping[str, Any], *, mode: Mode, above: int) -> list[Fields]:
    """Return the candidates' fields, from the folders, files or numbers that name them.

    Args:
        status: the server's model (`clients.rollout.local_server.LocalServer.status`).
        above: the highest number that was ever given.

    Raises:
        RequestError: there are too many for the mode, or one is named twice.
        SpecError: one is no release.
    """
    most = _MAX_CANDIDATES if mode is Mode.AB else 1
    if len(named) > most:
        raise RequestError(
            f"a rollout of mode {mode} tries {most} release{'s' if most > 1 else ''} out, got {len(named)}: "
            f"{', '.join(named)}" + ("" if mode is Mode.AB else "; --mode ab takes several"),
            field="release",
            value=", ".join(named),
        )
    model = model_of(status)
    found: list[Fields] = []
    for name in named:
        taken = max([above, *(each["release"] for each in found)])
        release = release_of(model, int(name)) if name.isdecimal() else candidate_from(Path(name), model, above=taken)
        if release.release == model.release:
            raise RequestError(
                f"release {release.release} is the stable one already", field="release", value=release.release
            )
        if release.release < model.release:
            raise RequestError(
                f"release {release.release} is older than the stable one ({model.release}), and whoever names no "
                "version gets the highest; name its folder or file instead, and it gets a new number",
                field="release",
                value=release.release,
            )
        if any(each["release"] == release.release for each in found):
            raise RequestError(f"release {name} is named twice", field="release", value=name)
        found.append(release.model_dump(mode="json"))
    return found


def model_of(status: Mapping[str, Any]) -> ModelSpec:
    """Return a server's model as its deployment has it."""
    fields = dict(next(each for each in status["releases"] if each["release"] == status["release"]))
    others = [each for each in status["releases"] if each["release"] != status["release"]]
    return validate(ModelSpec, {**fields, "name": status["name"], "other_releases": others}, source=Path("the server"))


def gpus_per_seat(release: Mapping[str, Any]) -> float:
    """Return the GPUs of a release's engine over the requests that it takes at a time.

    An engine without GPUs counts as one device.
    """
    engine = release["engine"]
    sizes = [int(engine.get(name) or 1) for name in ("tp_size", "pp_size")]
    return sizes[0] * sizes[1] / int(engine.get("max_num_seqs", 1))


def gate_settings(file: Path | None, max_requests: int | None, candidate: Fields) -> Fields:
    """Return the file's settings, completed by the candidate's target of TTFT and by `max_requests`.

    Raises:
        SpecError: the file cannot be read, or holds something else.
    """
    settings = {} if file is None else read_gate(file)
    target_ms = candidate["slo"]["ttft_ms"]
    if target_ms is not None:
        settings.setdefault("ttft_target_ms", target_ms)
    if max_requests is not None:
        settings["max_requests"] = max_requests
    return settings


def read_gate(file: Path) -> Fields:
    """Return the gate's settings in a file.

    Raises:
        SpecError: the file cannot be read, or holds something else.
    """
    try:
        loaded = load_yaml(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as exc:
        raise SpecError(f"cannot read the gate's settings {file}: {' '.join(str(exc).split())}", file=file) from exc
    return validate(GateSpec, loaded, source=file).model_dump(mode="json", exclude_unset=True)
