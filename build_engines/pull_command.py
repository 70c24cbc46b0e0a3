# SPDX-License-Identifier: Apache-2.0
"""`trireme pull`: a release onto this node's own disk, whole or not at all."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from build_engines.file_copies import OnBytes
from build_engines.release_cache import Pulled, ReleaseCache
from ensemble_configs.errors import SpecError
from ensemble_configs.places import check_folder_to_write
from ensemble_configs.release_manifest import MANIFEST_FILE, load_manifest

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def pull(
    release: Annotated[str, typer.Argument(help="Folder of a built release, or file:// and the folder.")],
    to: Annotated[Path, typer.Option(help="Cache folder on a local disk; the release lands in TO/ADDRESS.")],
    max_bytes: Annotated[
        str, typer.Option(help="Of all releases in the cache; what was used longest ago goes first, nothing in use.")
    ] = "200GB",
    jobs: Annotated[int, typer.Option(help="Files at a time.", min=1)] = 8,
    is_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Copy a built release to a local disk and print how fast it came and can be read; an interrupted copy goes on.

    Examples:

      trireme pull /mnt/releases/demo-int8 --to /nvme/releases

      trireme pull file:///mnt/releases/demo-int8 --to /nvme/releases --max-bytes 500GB
    """
    source = release_folder(release)
    console = Console(stderr=True, highlight=False)
    cache = ReleaseCache(to, max_bytes=parse_bytes(max_bytes), tell=console.print)
    total = (source / MANIFEST_FILE).stat().st_size if (source / MANIFEST_FILE).is_file() else 0
    total += sum(file.size for file in load_manifest(source).files.values())
    check_folder_to_write("--to", to)
    with _progress(console, total) as on_bytes:
        pulled = cache.pull(source, num_jobs=jobs, on_bytes=on_bytes)
    typer.echo(json.dumps(_facts(pulled), indent=2) if is_json else _lines(pulled))


def release_folder(release: str) -> Path:
    """Raises: SpecError: a URL that is not of this machine."""
    url = urlsplit(release)
    if url.scheme == "file" and url.netloc in ("", "localhost"):
        return Path(unquote(url.path))
    if "://" in release:
        raise SpecError(f"{release} is not on this machine; mount it, and name its folder", field="release")
    return Path(release)


def parse_bytes(text: str) -> int:
    """Raises: SpecError: not a number of bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", text.strip(), re.IGNORECASE)
    if match is None:
        raise SpecError(f"--max-bytes {text!r} is no size; write 200GB, 1.5TiB or a number of bytes", field="max_bytes")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2].upper()])


@contextmanager
def _progress(console: Console, total: int) -> Iterator[OnBytes]:
    columns = (TextColumn("copying"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total)
        yield lambda num_bytes: progress.advance(task, num_bytes)


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
            f"serve it: release_dir: {pulled.folder}",
        ]
    )
