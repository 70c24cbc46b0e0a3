# SPDX-License-Identifier: Apache-2.0
"""The project beside the Python environment of NVIDIA's image: `python3 scripts/gpu_image.py --into FOLDER`.

The Python that runs it is the one that has `tensorrt_llm`, and stays the only interpreter. What the environment lacks
is installed into FOLDER/packages, which comes behind the environment's own packages on the import path, so that none of
them is shadowed. FOLDER/in_front comes before them, and holds what has to be newer than the image's: openai.
docs/gpu_image.md says why. With `--for vllm` it is the Python of Triton's stubs: vLLM has an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if not __package__:
    sys.path[0] = str(ROOT)  # called as a file: `scripts` is imported as a package all the same

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from scripts.base_packages import (
    Conflict,
    LockEntry,
    Package,
    closure_conflicts,
    installed_packages,
    read_lock,
    read_requirements,
    replacement_conflicts,
)
from trireme.installing.commands import SetupError, describe_os_error
from trireme.installing.unpacked_lock import replace_directory

WANTED, LOCK, IN_FRONT_LOCK, OVERRIDES = (
    ROOT / "requirements" / name
    for name in ("gpu-image.in", "gpu-image.txt", "gpu-image-in-front.txt", "gpu-image-overrides.txt")
)
ENGINES = ("tensorrt_llm", "vllm")
PATH_FILE = "trireme.pth"
RECORD = "installed.json"
# Where NVIDIA's images keep it since 26.03; before, it was the system's own Python.
USUAL_PYTHON = Path("/opt/venv-tritonserver/bin/python3")
PROGRAM = """\
#!{python}
import sys
from trireme.__main__ import main
sys.exit(main())
"""


@dataclass(frozen=True)
class Plan:
    """Packages that go `behind` the base's packages or `in_front` of them; `kept` is what the base has."""

    behind: tuple[LockEntry, ...]
    in_front: tuple[LockEntry, ...]
    kept: tuple[Package, ...]


def main() -> int:
    """Run the command line and return its exit code."""
    options = parse_arguments()
    try:
        install(options.into.absolute(), in_front=options.in_front, engine=options.engine)
    except SetupError as error:
        return failed(str(error))
    except OSError as error:
        return failed(describe_os_error(error))
    except KeyboardInterrupt:
        return failed("interrupted; nothing was changed, run it again")
    return 0


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description="Puts Trireme beside the packages of the Python that runs this, which is to be the one with "
        "tensorrt_llm; installs only what they lack.",
        epilog="example: python3 scripts/gpu_image.py --into /opt/trireme-environment",
    )
    parser.add_argument("--into", type=Path, required=True, metavar="FOLDER", help="gets packages and bin/trireme")
    parser.add_argument(
        "--in-front",
        nargs="+",
        default=[],
        metavar="PACKAGE",
        help="take the locked version of these too, though the base has another, which is then shadowed",
    )
    parser.add_argument(
        "--for",
        dest="engine",
        choices=ENGINES,
        default=ENGINES[0],
        help="what serves: tensorrt_llm, of this Python; or vllm, of an environment of its own",
    )
    return parser.parse_args()


def install(into: Path, *, in_front: Sequence[str], engine: str) -> None:
    """Install what is missing, check it with what is there, and put all of it in its place at once.

    Raises:
        SetupError: this is the wrong Python, the packages do not fit together, or pip failed. Nothing was changed.
    """
    base = installed_packages(base_folders(into))
    refuse_other_pythons(base, engine)
    plan = make_plan(base, in_front={canonicalize_name(name) for name in in_front}, engine=engine)
    say(f"{len(plan.kept)} of the packages that Trireme needs are there: {names(plan.kept)}")
    say(f"installing {len(plan.behind)} behind them: {names(plan.behind) or 'none'}")
    say(f"installing {len(plan.in_front)} in front of them: {names(plan.in_front) or 'none'}")
    staging = into.with_name(f"{into.name}.partial")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        pip_install(plan.behind, staging / "packages")
        pip_install(plan.in_front, staging / "in_front")
        refuse_conflicts(base, plan, staging)
        write_program(staging, into)
        write_record(staging / RECORD, plan, base)
        replace_directory(staging, into)
        write_path_file(into)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    say(f"done: {into}/bin/trireme; {PATH_FILE} in {site_folder()} names the folders")


def base_folders(into: Path) -> list[Path]:
    """Return where this Python imports packages from, without what an earlier call has added, into whatever folder."""
    added = [into]
    if (site_folder() / PATH_FILE).exists():
        before, *_ = (site_folder() / PATH_FILE).read_text(encoding="utf-8").splitlines()
        added.append(Path(before).parent)
    places = [Path(place) for place in sys.path if place and Path(place) != ROOT]
    return [place for place in places if place.is_dir() and not any(place.is_relative_to(each) for each in added)]


def refuse_other_pythons(base: Mapping[str, Package], engine: str) -> None:
    """Raise SetupError unless this is the Python that has TensorRT-LLM, can install, and may be added to."""
    if engine == "tensorrt_llm" and "tensorrt-llm" not in base:
        where = (
            f"with {USUAL_PYTHON}" if USUAL_PYTHON.exists() else "in NVIDIA's image tritonserver:*-trtllm-python-py3"
        )
        raise SetupError(f"{sys.executable} has no tensorrt_llm; run it {where}")
    if "pip" not in base:
        raise SetupError(f"{sys.executable} has no pip; `{sys.executable} -m ensurepip` installs it")
    if not os.access(site_folder(), os.W_OK):
        raise SetupError(f"{site_folder()} cannot be written to by this user; run it as the one who owns it (root)")


def make_plan(base: Mapping[str, Package], *, in_front: set[str], engine: str) -> Plan:
    """Decide what is installed.

    Raises:
        SetupError: a name of `in_front` is not locked, or not in the base.
    """
    lock, newer = read_lock(LOCK.read_text(encoding="utf-8")), read_lock(IN_FRONT_LOCK.read_text(encoding="utf-8"))
    for name in sorted(in_front):
        if name not in lock or name not in base:
            missing = "requirements/gpu-image.txt" if name not in lock else "the base"
            raise SetupError(f"--in-front {name}: it is not in {missing}; leave it out")
    if engine != "tensorrt_llm":  # which alone imports what is newer
        newer = {}
    replaced = [entry for entry in newer.values() if entry.name not in base or is_older(base[entry.name], entry)]
    return Plan(
        behind=tuple(entry for entry in lock.values() if entry.name not in base),
        in_front=(*replaced, *(entry for entry in lock.values() if entry.name in in_front)),
        kept=tuple(base[name] for name in lock if name in base and name not in in_front),
    )


def is_older(package: Package, entry: LockEntry) -> bool:
    """Return whether an installed package is older than a lock wants it."""
    return Version(package.version) < Version(entry.version)


def pip_install(entries: Iterable[LockEntry], folder: Path) -> None:
    """Install locked packages, and nothing that they need, into a folder; pip shows its progress.

    Raises:
        SetupError: pip failed; what it wrote stands above.
    """
    folder.mkdir(parents=True)
    wanted = folder.with_name(f"{folder.name}.txt")
    wanted.write_text("".join(entry.text for entry in entries), encoding="utf-8")
    if not wanted.read_text(encoding="utf-8"):
        return
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-cache-dir", "--no-compile"]
    options = [
        "--no-deps",
        "--require-hashes",
        "--only-binary",
        ":all:",
        "--progress-bar",
        "off",
        "--target",
        str(folder),
    ]
    status = subprocess.run([*command, *options, "-r", str(wanted)], check=False).returncode
    if status:
        raise SetupError(f"pip ended with status {status}; what it says stands above")
    shutil.rmtree(folder / "bin", ignore_errors=True)  # programs of packages: none of them is ours


def refuse_conflicts(base: Mapping[str, Package], plan: Plan, staging: Path) -> None:
    """Raise SetupError if what will be imported together does not fit; the text names each package that does not."""
    ours = {
        **installed_packages([staging / "packages"]),
        **base,
        **installed_packages([staging / "in_front"]),
    }
    exceptions = read_requirements(OVERRIDES.read_text(encoding="utf-8"))
    overrides: dict[str, SpecifierSet] = {
        canonicalize_name(each.name): each.specifier
        for each in exceptions
        if each.marker is None or each.marker.evaluate()
    }
    roots = read_requirements(WANTED.read_text(encoding="utf-8"))
    roots += read_requirements("\n".join(f"{entry.name}=={entry.version}" for entry in plan.in_front))
    conflicts = closure_conflicts(roots, ours, overrides)
    versions = {entry.name: entry.version for entry in plan.in_front}
    broken = list(replacement_conflicts(versions, {name: each for name, each in base.items() if name not in versions}))
    if conflicts or broken:
        lines = [f"  {line}" for line in (*map(next_step, conflicts), *map(str, broken))]
        raise SetupError("\n".join(["these packages do not fit together; nothing was changed:", *lines]))


def next_step(conflict: Conflict) -> str:
    """Return a conflict with what can be done about it."""
    name = canonicalize_name(conflict.requirement.name)
    locked = read_lock(LOCK.read_text(encoding="utf-8")).get(name)
    if conflict.found is None or locked is None or not conflict.requirement.specifier.contains(locked.version):
        return f"{conflict}; take the image that docs/gpu_image.md names"
    return f"{conflict}; take another image, or shadow it with {name} {locked.version}: --in-front {name}"


def write_program(staging: Path, into: Path) -> None:
    """Write bin/trireme, and the metadata that says which version it is of."""
    program = staging / "bin" / "trireme"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(python=sys.executable), encoding="utf-8")
    program.chmod(0o755)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    metadata = staging / "packages" / f"trireme-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: trireme\nVersion: {version}\n", encoding="utf-8")
    (metadata / "INSTALLER").write_text(f"{Path(__file__).name} into {into}\n", encoding="utf-8")


def write_record(file: Path, plan: Plan, base: Mapping[str, Package]) -> None:
    """Write which packages belong to whom, for a person who wonders."""
    record = {
        "python": sys.executable,
        **({"tensorrt_llm": base["tensorrt-llm"].version} if "tensorrt-llm" in base else {}),
        "behind": {each.name: each.version for each in plan.behind},
        "in_front": {each.name: each.version for each in plan.in_front},
        "kept": {each.name: each.version for each in plan.kept},
    }
    file.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def write_path_file(into: Path) -> None:
    """Name our folders to every process of this Python: the image's tools, Triton's stubs, ranks that MPI starts."""
    lines = [
        str(into / "packages"),
        str(ROOT),
        # The one folder before the base's own packages; it holds nothing but what `--in-front` and its lock name.
        f"import sys; sys.path.insert(0, {str(into / 'in_front')!r})",
    ]
    partial = site_folder() / f"{PATH_FILE}.partial"
    partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
    partial.rename(site_folder() / PATH_FILE)


def site_folder() -> Path:
    """Return the folder of this Python's own packages."""
    return Path(sysconfig.get_path("purelib"))


def names(packages: Iterable[Package | LockEntry]) -> str:
    """Return packages with their versions, in one line."""
    return ", ".join(f"{each.name} {each.version}" for each in sorted(packages, key=lambda each: each.name))


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"[gpu-image] {text}", flush=True)


def failed(message: str) -> int:
    """Print the line that says what is wrong, and return the exit code."""
    print(f"gpu-image: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
