# SPDX-License-Identifier: Apache-2.0
"""The check of the built releases that a start is to load, before anything is imported that could load them."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ensemble_configs.releases.file_hashes import HashMemory
from ensemble_configs.releases.preflight import check_release
from ensemble_configs.releases.release_lock import in_use
from ensemble_configs.releases.release_manifest import BINDING_PACKAGES, find_release, load_manifest
from ensemble_configs.spec.finding import Finding, refuse
from ensemble_configs.spec.release_spec import ReleaseSpec
from serving.engines.providers import start_of_release
from serving.process.this_machine import read_machine
from trireme.base.errors import SpecError

_PLACES = ("dir", "draft_dir", "lora_file")  # fields of engines


def refuse_unfit_releases(spec: ReleaseSpec) -> None:
    """Check every built release that a deployment serves; an engine without a manifest beside it is not a release.

    Raises:
        SpecError: what stands in the way, and the next step.
    """
    if (folder := built_release_of(spec)) is not None:
        refuse(findings_here(folder, spec), source=folder)


@contextlib.contextmanager
def releases_in_use(spec: ReleaseSpec) -> Iterator[None]:
    """Keep the releases of a deployment from being moved or sealed again, and from being evicted from a cache."""
    with contextlib.ExitStack() as held:
        if (folder := built_release_of(spec)) is not None:
            held.enter_context(in_use(folder))
        yield


def built_release_of(spec: ReleaseSpec) -> Path | None:
    """Return the folder of the built release that a deployment's engine comes from; None: a folder without a manifest.

    Raises:
        SpecError: a signature is wanted, but the folder is no release.
    """
    engine_dir: Path | None = getattr(spec.engine, "dir", None)
    folder = spec.release_dir
    if folder is None and engine_dir is not None:
        folder = find_release(engine_dir)
    if folder is None and spec.release_public_key is not None:
        raise SpecError(
            f"release_public_key is set, but {engine_dir or spec.engine.provider} is no release that could be signed; "
            "set release_dir, or leave the key out",
            field="release_public_key",
        )
    return folder


def unverified_places(spec: ReleaseSpec) -> list[Path]:
    """Return the paths that an engine loads without a manifest of their files: an altered byte would go unnoticed."""
    folder = built_release_of(spec)
    named = [getattr(spec.engine, field, None) for field in _PLACES]
    return [
        place
        for place in named
        if isinstance(place, Path) and (folder is None or not place.resolve().is_relative_to(folder.resolve()))
    ]


def is_verified(spec: ReleaseSpec) -> bool | None:
    """Return whether all files that an engine loads were compared with a manifest; None: it has no files."""
    return None if getattr(spec.engine, "dir", None) is None else not unverified_places(spec)


def launcher_findings(spec: ReleaseSpec) -> list[Finding]:
    """Return what keeps the ranks of an engine from being started on this machine."""
    try:
        start_of_release(spec)
    except SpecError as exc:
        if exc.facts.get("field") == "engine.launcher":
            return [Finding(check="launcher", found="none", wanted="mpirun on PATH", next_step=exc.message)]
    return []


def findings_here(
    folder: Path, spec: ReleaseSpec | None, *, num_nodes: int | None = None, is_full: bool = False
) -> list[Finding]:
    """Return all that stands in the way of serving a release on this machine.

    Args:
        folder: the release.
        spec: how it is to be served, if that is known.
        num_nodes: number of machines that its ranks are spread over.
        is_full: read every file, also one that has not changed since it was read last.
    """
    try:
        provider = load_manifest(folder).provider
        machine = read_machine(BINDING_PACKAGES[provider], is_asking_for_gpus=provider != "openvino")
    except SpecError:  # `check_release` reports it as a finding
        machine = read_machine((), is_asking_for_gpus=False)
    memory = None if is_full else HashMemory.of_folder(folder)
    return check_release(folder, machine=machine, deployment=spec, num_nodes=num_nodes, memory=memory)
