# SPDX-License-Identifier: Apache-2.0
"""`trireme pull` as it is run: killed, twice at once, on a full disk."""

import contextlib
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_here import run_here
from demo_release import write_demo_release

from build_engines.cache.pull_command import parse_bytes, release_folder
from build_engines.cache.release_cache import ReleaseCache
from ensemble_configs.releases.release_manifest import address, load_manifest, seal, verify
from trireme.base.errors import SpecError

pytestmark = pytest.mark.slow

MB = 10**6
SAMPLE_OF_KILLS, NUM_KILLS = 6, 20


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return write_demo_release(tmp_path / "release")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a release that takes a while: 4 files of 48 MB of random bytes more."""
    folder = write_demo_release(tmp_path_factory.mktemp("large") / "release")
    for number in range(4):
        (folder / f"engine/rank{number}.bin").write_bytes(random.Random(number).randbytes(48 * MB))
    seal(folder, load_manifest(folder))
    return folder


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "trireme", "pull", *map(str, arguments)]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_here("pull", *arguments)


def is_same(a: Path, b: Path) -> bool:
    return subprocess.run(["diff", "-r", a, b], stdout=subprocess.DEVNULL, check=False).returncode == 0


def staged_bytes(cache: Path) -> int:
    """Return the bytes that are copied so far.

    A folder may be renamed between its listing and its walk: then nothing is staged there.
    """
    total = 0
    for folder, _, names in os.walk(cache / ".staging"):  # unlike rglob() it passes over a folder that has gone
        for name in names:
            try:
                total += Path(folder, name).stat().st_size
            except FileNotFoundError:
                continue
    return total


def test_a_pull_says_where_the_release_is_and_how_fast_it_came(release: Path, tmp_path: Path) -> None:
    result = run(release, "--to", tmp_path / "cache")
    folder = tmp_path / "cache" / address(release)
    assert (result.returncode, result.stderr) == (0, "")
    assert is_same(release, folder)
    lines = result.stdout.splitlines()
    assert lines[0] == str(folder)
    assert "MB/s" in lines[1]
    assert "MB/s" in lines[2]
    assert lines[-1] == f"serve it: release_dir: {folder}"
    assert "was there already" in run(f"file://{release}", "--to", tmp_path / "cache").stdout


def test_programs_read_json(release: Path, tmp_path: Path) -> None:
    facts = json.loads(run(release, "--to", tmp_path / "cache", "--json").stdout)
    assert facts["folder"] == str(tmp_path / "cache" / address(release))
    assert facts["address"] == address(release)
    assert facts["copied_bytes"] == facts["bytes"] > 6 * MB
    assert facts["copy_mb_per_s"] == pytest.approx(facts["bytes"] / 1e6 / facts["copy_s"])
    assert facts["read_mb_per_s"] == pytest.approx(facts["bytes"] / 1e6 / facts["read_s"])
    assert facts["evicted"] == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("num_kills", [SAMPLE_OF_KILLS, pytest.param(NUM_KILLS, marks=pytest.mark.soak)])
def test_a_pull_that_is_killed_at_any_moment_goes_on_to_the_same_release(
    large: Path, tmp_path: Path, num_kills: int
) -> None:
    chance = random.Random(4)
    cache = tmp_path / "cache"
    target = cache / address(large)
    total = 200 * MB
    num_partial = 0
    for _ in range(num_kills):
        threshold = chance.uniform(0, 1.1) * total  # beyond the whole: while it is read back
        line = command(large, "--to", cache)
        with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            deadline_s = time.monotonic() + 60
            while process.poll() is None and staged_bytes(cache) < threshold and time.monotonic() < deadline_s:
                time.sleep(0.002)
            process.kill()
        if target.exists():
            verify(target)
            target.rename(tmp_path / "old")
            subprocess.run(["rm", "-r", tmp_path / "old"], check=True)
        else:
            num_partial += staged_bytes(cache) > 0
    assert num_partial > num_kills // 4
    assert run(large, "--to", cache).returncode == 0
    assert is_same(large, target)
    verify(target)
    assert not list((cache / ".staging").iterdir())


def test_of_two_pulls_at_once_only_one_copies(large: Path, tmp_path: Path) -> None:
    line = command(large, "--to", tmp_path / "cache", "--json")
    both = [subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    facts = [json.loads(stdout) for stdout, _ in outputs]
    assert sorted(fact["copied_bytes"] for fact in facts) == [0, facts[0]["bytes"]]
    assert is_same(large, tmp_path / "cache" / address(large))


@contextmanager
def disk(folder: Path, num_bytes: int) -> Iterator[None]:
    """Mount a small file system at `folder`.

    Raises:
        CalledProcessError: we may not mount one.
    """
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={num_bytes}", "none"]
    subprocess.run(["mount", *options, folder], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def may_mount() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        try:
            with disk(Path(folder) / "disk", MB):
                return True
        except (subprocess.CalledProcessError, FileNotFoundError):
            return False


if may_mount():  # as root, outside of most containers; everywhere else the limit below stands for a full disk

    def test_a_disk_that_is_too_small_is_told_before_anything_is_copied(release: Path, tmp_path: Path) -> None:
        cache = tmp_path / "disk"
        with disk(cache, 4 * MB):
            result = run(release, "--to", cache)
            assert result.returncode == 2
            assert f"{cache} has no room for" in result.stderr
            assert staged_bytes(cache) == 0
            assert not (cache / address(release)).exists()

    def test_a_disk_that_somebody_else_fills_meanwhile_is_told(release: Path, tmp_path: Path) -> None:
        cache = tmp_path / "disk"
        rubbish = cache / "rubbish"

        def fill(_num_bytes: int) -> None:
            with contextlib.suppress(OSError), rubbish.open("ab") as file:
                file.write(bytes(8 * MB))

        with disk(cache, 8 * MB):
            here = ReleaseCache(cache, max_bytes=100 * MB, tell=print)
            with pytest.raises(SpecError, match=r"cannot write .*No space left on device; free some space"):
                here.pull(release, num_jobs=2, on_bytes=fill)
            assert not (cache / address(release)).exists()
            rubbish.unlink()
            assert is_same(release, here.pull(release, num_jobs=2, on_bytes=id).folder)


def test_a_disk_that_fills_up_leaves_a_copy_that_goes_on(release: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3 * MB, 3 * MB))

    result = subprocess.run(
        command(release, "--to", cache), capture_output=True, text=True, timeout=120, check=False, preexec_fn=limit
    )
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    for words in ("cannot write", "openvino_model.bin", "free some space", "pull again to go on"):
        assert words in result.stderr
    assert not (cache / address(release)).exists()
    facts = json.loads(run(release, "--to", cache, "--json").stdout)
    assert facts["copied_bytes"] <= facts["bytes"] - 3 * MB
    assert is_same(release, cache / address(release))


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("200GB", 200 * 10**9),
        ("1.5TiB", 3 << 39),
        ("10 MB", 10**7),
        ("4096", 4096),
        ("1k", 1000),
        ("2gib", 2 << 30),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1XB", "1,5GB", "ten"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"is no size; write 200GB"):
        parse_bytes(text)


def test_releases_are_named_by_folder_or_file_url() -> None:
    assert (
        release_folder("/a b")
        == release_folder("file:///a%20b")
        == release_folder("file://localhost/a%20b")
        == Path("/a b")
    )
    for other in ("s3://bucket/release", "file://elsewhere/a"):
        with pytest.raises(SpecError, match="is not on this machine; mount it"):
            release_folder(other)
