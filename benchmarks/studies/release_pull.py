# SPDX-License-Identifier: Apache-2.0
"""Savings of `trireme pull`: a server's start from a release on the node's disk, over one from network storage.

The pull itself and the check of the hashes are measured, too.

`python -m benchmarks.studies.release_pull --help`. The storage is a stand-in on this machine
(`benchmarks.support.network_mount`).
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.support.network_mount import NetworkMount, why_not
from benchmarks.support.report import environment, median_with_interval, write_result
from ensemble_configs.releases.file_hashes import HashMemory, hash_file
from ensemble_configs.releases.release_manifest import ReleaseManifest, hash_recipe, seal, verify
from ensemble_configs.releases.release_parts import ModelIdentity, ReleaseLimits
from trireme.base.free_ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
_START_S = 120.0  # a start that takes longer stands still
_MOST_TRIES = 3
_STORAGE = (
    "a WebDAV server of rclone and a FUSE mount of rclone without a copy of its own, in a network namespace whose "
    "loopback device the kernel holds to the rate (tbf): a bucket as a node mounts it, without a network's delay"
)


def main(
    model: Annotated[Path, typer.Option(help="Folder of the model that `make bench-model` writes.")] = ROOT
    / "build/random_125m",
    mb_per_s: Annotated[list[float], typer.Option(help="Rates of the link; may be given again.")] = [50, 200],  # noqa: B006
    rounds: Annotated[int, typer.Option(help="Rounds; each starts all sides, in turn.", min=2)] = 5,
    is_kept: Annotated[bool, typer.Option("--keep/--no-keep", help="Write the result to benchmarks/results.")] = True,
    out: Annotated[Path | None, typer.Option(help="Write the result to this file instead.")] = None,
) -> None:
    """Measure and print; takes some minutes, and root."""
    if reason := why_not():
        raise typer.BadParameter(reason)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        release = write_release(model, place / "store" / "release")
        size = sum(path.stat().st_size for path in release.rglob("*") if path.is_file())
        rows = [_measure(place / f"{rate:g}", place / "store", rate, rounds) for rate in mb_per_s]
        hashes = _hash_check(release, place / "memory", rounds)
    result: dict[str, object] = {
        "benchmark": "release_pull",
        "storage": _STORAGE,
        "release_bytes": size,
        "rounds": rounds,
        "rows": rows,
        "hash_check": hashes,
        "environment": environment(),
    }
    if is_kept:
        typer.echo(f"written to {write_result('release_pull', result, out)}", err=True)
    Console().print(_table(rows))


def write_release(model: Path, folder: Path) -> Path:
    """Make a folder a sealed release of the benchmarks' model on OpenVINO."""
    shutil.copytree(model / "openvino/target", folder / "engine")
    (folder / "tokenizer").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model / "target" / name, folder / "tokenizer" / name)
    config = json.loads((model / "target/config.json").read_text())
    recipe = {"name": "random_125m"}
    manifest = ReleaseManifest(
        name="random-125m",
        model=ModelIdentity(architecture=config["architectures"][0], num_parameters=125_000_000, source="random"),
        weights_sha256=hash_file(model / "target/model.safetensors"),
        tokenizer_sha256=hash_file(model / "target/tokenizer.json"),
        recipe_sha256=hash_recipe(dict(recipe)),
        recipe=dict(recipe),
        provider="openvino",
        versions={name: version(name) for name in ("openvino", "openvino_genai")},
        limits=ReleaseLimits(max_seq_len=config["max_position_embeddings"]),
        weight_bytes_per_rank=(model / "openvino/target/openvino_model.bin").stat().st_size,
        kv_bytes_per_token=2
        * config["num_hidden_layers"]
        * config["num_key_value_heads"]
        * (config["hidden_size"] // config["num_attention_heads"]),
        vocab_size=config["vocab_size"],
    )
    seal(folder, manifest)
    return folder


def _measure(place: Path, store: Path, mb_per_s: float, rounds: int) -> dict[str, object]:
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    with NetworkMount(store, place / "mount", mb_per_s=mb_per_s) as mount:
        for index in range(rounds):
            cache, memory = place / f"cache{index}", place / f"hashes{index}"
            num_bytes = mount.num_link_bytes()
            note("start_from_storage_s", _start_s(mount, place / "mount/release", place / f"none{index}"))
            note("start_from_storage_link_mb", (mount.num_link_bytes() - num_bytes) / 1e6)
            pulled = _pull(mount, place / "mount/release", cache)
            note("pull_s", pulled["wall_s"])
            note("pull_mb_per_s", pulled["copied_bytes"] / pulled["copy_s"] / 1e6)
            local = Path(str(pulled["folder"]))
            _forget_pages(local)
            note("first_start_from_cache_s", _start_s(mount, local, memory))
            note("next_start_from_cache_s", _start_s(mount, local, memory))
            shutil.rmtree(cache)
    row: dict[str, object] = {"link_mb_per_s": mb_per_s}
    row |= {name: median_with_interval(values) for name, values in found.items()}
    for name in ("first", "next"):
        sides = zip(found[f"{name}_start_from_cache_s"], found["start_from_storage_s"], strict=True)
        row[f"{name}_start_from_cache_over_storage"] = median_with_interval([one / other for one, other in sides])
    pulled_first = [
        pull + start for pull, start in zip(found["pull_s"], found["first_start_from_cache_s"], strict=True)
    ]
    sides = zip(pulled_first, found["start_from_storage_s"], strict=True)
    row["pull_and_first_start_over_storage"] = median_with_interval([one / other for one, other in sides])
    return row


def _pull(mount: NetworkMount, release: Path, cache: Path) -> dict[str, float]:
    start_s = time.perf_counter()
    pulled = mount.run([sys.executable, "-m", "trireme", "pull", str(release), "--to", str(cache), "--json"])
    if pulled.returncode:
        raise SystemExit(f"the pull failed: {pulled.stderr}")
    return dict(json.loads(pulled.stdout)) | {"wall_s": time.perf_counter() - start_s}


def _start_s(mount: NetworkMount, release: Path, memory: Path) -> float:
    """Return the seconds from the command to the server that is ready.

    Triton 2.51 now and then crashes or stands still while it loads; such a start is told of, and made again.

    Args:
        mount: the mount with the release.
        release: the release's folder.
        memory: of hashes, a cache folder.
    """
    for _ in range(_MOST_TRIES):
        known = memory.with_name(f"{memory.name}_before")
        shutil.rmtree(known, ignore_errors=True)
        if memory.exists():
            shutil.copytree(memory, known)
        with tempfile.TemporaryDirectory() as folder:
            taken_s, said = _try_start(mount, release, memory, Path(folder) / "deployment.yaml")
        if taken_s is not None:
            return taken_s
        typer.echo("a start failed and is made again:\n" + said, err=True)
        shutil.rmtree(memory, ignore_errors=True)  # it hashed before it failed
        if known.exists():
            known.rename(memory)
    raise SystemExit("the server did not become ready")


def _try_start(mount: NetworkMount, release: Path, memory: Path, deployment: Path) -> tuple[float | None, str]:
    """Return the seconds, or None where the server did not become ready at once, and what the server said."""
    spec = {"name": "pulled", "release_dir": str(release), "engine": {"provider": "openvino", "num_kv_blocks": 256}}
    deployment.write_text(yaml.safe_dump(spec))
    ports = zip(("--http-port", "--grpc-port", "--metrics-port"), map(str, free_ports(3)), strict=True)
    command = [sys.executable, "-m", "trireme", "serve", "--deployment", str(deployment)]
    start_s = time.perf_counter()
    server = subprocess.Popen(
        mount.command([*command, *(part for option in ports for part in option)]),
        env=dict(os.environ) | {"XDG_CACHE_HOME": str(memory), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert server.stdout is not None
    patience = threading.Timer(_START_S, server.terminate)
    patience.start()
    said = []
    for line in server.stdout:
        said.append(line)
        if line.startswith("ready after"):
            break
    taken_s = time.perf_counter() - start_s
    patience.cancel()
    server.terminate()
    said += server.stdout.readlines()
    server.wait()
    text = "".join(said)
    is_clean = any(line.startswith("ready after") for line in said) and "starting it again" not in text
    return taken_s if is_clean else None, text


def _hash_check(release: Path, memory: Path, rounds: int) -> dict[str, object]:
    """Measure the check of a release on the disk: read from disk, from memory, and not read because it was before."""
    found: dict[str, list[float]] = {"from_disk_s": [], "from_page_cache_s": [], "remembered_s": []}
    verify(release, memory=HashMemory(memory))
    for _ in range(rounds):
        _forget_pages(release)
        for name, known in (("from_disk_s", None), ("from_page_cache_s", None), ("remembered_s", memory)):
            start_s = time.perf_counter()
            verify(release, memory=None if known is None else HashMemory(known))
            found[name].append(time.perf_counter() - start_s)
    figures: dict[str, object] = {name: median_with_interval(values) for name, values in found.items()}
    ratios = [one / other for one, other in zip(found["remembered_s"], found["from_disk_s"], strict=True)]
    return figures | {"remembered_over_from_disk": median_with_interval(ratios)}


def _forget_pages(folder: Path) -> None:
    """Make the kernel drop what it holds of the files, so that they come from the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _table(rows: list[dict[str, object]]) -> Table:
    table = Table(title="Seconds, medians; ratios with 90 % intervals")
    names = ("start_from_storage_s", "pull_s", "first_start_from_cache_s", "next_start_from_cache_s")
    ratios = ("first_start_from_cache_over_storage", "next_start_from_cache_over_storage")
    for column in ("link", *names, *ratios):
        table.add_column(column, justify="right")
    for row in rows:
        figures = {name: dict(found) for name, found in row.items() if isinstance(found, dict)}
        table.add_row(
            f"{row['link_mb_per_s']:g} MB/s",
            *(f"{figures[name]['median']:.2f}" for name in names),
            *("{median:.2f} ({low:.2f} to {high:.2f})".format(**figures[name]) for name in ratios),
        )
    return table


if __name__ == "__main__":
    typer.run(main)
