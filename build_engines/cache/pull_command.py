# SPDX-License-Identifier: Apache-2.0
"""`trireme pull`: a release, or all releases of a deployment, on this node's own disk, whole or not at all."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from build_engines.cache.file_copies import OnBytes
from build_engines.cache.moved_deployment import moved_deployment, release_dirs
from build_engines.cache.release_cache import Pulled, ReleaseCache
from ensemble_configs.releases.release_lock import in_use
from ensemble_configs.releases.release_manifest import MANIFEST_FILE, load_manifest
from ensemble_configs.spec.deployment import DeploymentSpec, load_deployment
from trireme.base.durable_files import write_atomically
from trireme.base.errors import SpecError
from trireme.base.path_checks import check_file_to_write, check_folder_to_write

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_LINE_S = 10.0  # between two lines of progress where there is no terminal


def pull(
    to: Annotated[Path, typer.Option(help="Cache folder on a local disk; a release lands in TO/ADDRESS.")],
    release: Annotated[
        str | None,
        typer.Argument(help="Folder of a built release, or file:// and the folder.", show_default="the deployment's"),
    ] = None,
    deployment: Annotated[Path | None, typer.Option(help="Deployment file: all releases that it serves.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="File for a deployment of the releases in the cache, with --deployment.")
    ] = None,
    max_bytes: Annotated[
        str, typer.Option(help="Limit of the cache; releases unused longest are evicted first, none in use.")
    ] = "200GB",
    jobs: Annotated[int, typer.Option(help="Files copied at a time.", min=1)] = 8,
    is_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Copy built releases to a local disk and print how fast they came and can be read; an interrupted copy goes on.

    Examples:

      trireme pull /mnt/releases/demo-int8 --to /nvme/releases

      trireme pull file:///mnt/releases/demo-int8 --to /nvme/releases --max-bytes 500GB

      trireme pull --deployment my.yaml --to /nvme/releases --out local.yaml
    """
    spec = _deployment(release, deployment, out)
    sources = [release_folder(release)] if release is not None else release_dirs(spec) if spec is not None else []
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    total = sum(_num_bytes(source) for source in sources)
    check_folder_to_write("--to", to)
    cache = ReleaseCache(to, max_bytes=parse_bytes(max_bytes), tell=console.print)
    tell = console.print if spec is not None else None
    with _progress(console, total) as on_bytes:
        pulled = _pull_all(cache, sources, num_jobs=jobs, on_bytes=on_bytes, tell=tell)
    if spec is not None and out is not None:
        moved = {source: one.folder for source, one in zip(sources, pulled, strict=True)}
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, moved_deployment(spec, moved))
        typer.echo(_deployment_json(out, sources, pulled) if is_json else _deployment_lines(out, deployment, pulled))
    else:
        typer.echo(json.dumps(_facts(pulled[0]), indent=2) if is_json else _lines(pulled[0]))


def _deployment(release: str | None, deployment: Path | None, out: Path | None) -> DeploymentSpec | None:
    """Return the deployment that the options name, or None.

    Raises:
        SpecError: the options do not go together, or what they name cannot be read or written.
    """
    if deployment is None:
        if release is None:
            raise SpecError("name the folder of a release, or a deployment that serves some (--deployment)")
        if out is not None:
            raise SpecError("--out is where a deployment goes; name one (--deployment), or leave --out out")
        return None
    if release is not None:
        raise SpecError("RELEASE and --deployment exclude each other; leave one of them out")
    if out is None:
        raise SpecError("--deployment needs --out, the file for the deployment of the releases in the cache")
    check_file_to_write("--out", out)
    return load_deployment(deployment)


def _num_bytes(source: Path) -> int:
    """Return the bytes of a release and its manifest.

    Raises:
        SpecError: the folder is no release.
    """
    files = load_manifest(source).files.values()
    return (source / MANIFEST_FILE).stat().st_size + sum(file.size for file in files)


def _pull_all(
    cache: ReleaseCache,
    sources: Sequence[Path],
    *,
    num_jobs: int,
    on_bytes: OnBytes,
    tell: Callable[[str], object] | None,
) -> list[Pulled]:
    """Pull the releases in turn; none makes room for itself by evicting another of `sources`."""
    pulled = []
    with ExitStack() as held:
        for number, source in enumerate(sources, 1):
            if tell is not None:
                tell(f"release {number} of {len(sources)}: {source}")
            pulled.append(cache.pull(source, num_jobs=num_jobs, on_bytes=on_bytes))
            held.enter_context(in_use(pulled[-1].folder))
    return pulled


def release_folder(release: str) -> Path:
    """Return the folder that a path or a `file:` URL names.

    Raises:
        SpecError: a URL that is not of this machine.
    """
    url = urlsplit(release)
    if url.scheme == "file" and url.netloc in ("", "localhost"):
        return Path(unquote(url.path))
    if "://" in release:
        raise SpecError(f"{release} is not on this machine; mount it, and name its folder", field="release")
    return Path(release)


def parse_bytes(text: str) -> int:
    """Return the number of bytes that a text such as 200GB or 1.5TiB says.

    Raises:
        SpecError: not a number of bytes.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", text.strip(), re.IGNORECASE)
    if match is None:
        raise SpecError(f"--max-bytes {text!r} is no size; write 200GB, 1.5TiB or a number of bytes", field="max_bytes")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2].upper()])


@contextmanager
def _progress(console: Console, total: int) -> Iterator[OnBytes]:
    if not console.is_terminal:  # a container's log
        yield _lines_now_and_then(console, total)
        return
    columns = (TextColumn("copying"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda num_bytes: progress.advance(task, num_bytes)


def _lines_now_and_then(console: Console, total: int) -> OnBytes:
    lock = threading.Lock()
    num_done, told_s = 0, time.monotonic()

    def on_bytes(num_bytes: int) -> None:
        nonlocal num_done, told_s
        with lock:
            num_done += num_bytes
            if time.monotonic() - told_s < _LINE_S:
                return
            told_s = time.monotonic()
        console.print(f"{num_done / 1e9:,.1f} of {total / 1e9:,.1f} GB")

    return on_bytes


def _deployment_json(out: Path, sources: Sequence[Path], pulled: Sequence[Pulled]) -> str:
    releases = [{"source": str(source)} | _facts(one) for source, one in zip(sources, pulled, strict=True)]
    return json.dumps({"deployment": str(out), "releases": releases}, indent=2)


def _deployment_lines(out: Path, deployment: Path | None, pulled: Sequence[Pulled]) -> str:
    nothing = [] if pulled else [f"{deployment} names no release_dir; nothing is pulled"]
    return "\n".join([*nothing, *map(_release_lines, pulled), f"serve it: trireme serve --deployment {out}"])


def _facts(pulled: Pulled) -> dict[str, object]:
    return {
        "folder": str(pulled.folder),
        "address": pulled.folder.name,
        "bytes": pulled.num_bytes,
        "copied_bytes": pulled.num_copied_bytes,
        "copy_s": pulled.copy_s,
        "copy_mb_per_s": _mb_per_s(pulled.num_copied_bytes, pulled.copy_s),
        "read_s": pulled.read_s,
        "read_mb_per_s": _mb_per_s(pulled.num_bytes, pulled.read_s),
        "evicted": list(pulled.evicted),
    }


def _mb_per_s(num_bytes: int, seconds: float) -> float | None:
    return num_bytes / 1e6 / seconds if seconds else None


def _lines(pulled: Pulled) -> str:
    return f"{_release_lines(pulled)}\nserve it: release_dir: {pulled.folder}"


def _release_lines(pulled: Pulled) -> str:
    facts = _facts(pulled)
    copied = (
        f"copied {pulled.num_copied_bytes / 1e6:,.1f} of {pulled.num_bytes / 1e6:,.1f} MB in {pulled.copy_s:.1f} s, "
        f"{facts['copy_mb_per_s']:,.0f} MB/s"
        if pulled.copy_s
        else f"was there already, {pulled.num_bytes / 1e6:,.1f} MB"
    )
    return "\n".join(
        [
            str(pulled.folder),
            f"  {copied}",
            f"  read back and compared in {pulled.read_s:.1f} s, {facts['read_mb_per_s']:,.0f} MB/s",
            *(f"  evicted {address}" for address in pulled.evicted),
        ]
    )
