# SPDX-License-Identifier: Apache-2.0
"""A pulled release is that of the source, byte by byte, or it is not there; what is in use stays."""

import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from demo_release import alter_a_byte, write_demo_release, write_gpu_release

from build_engines.cache.file_copies import FileCopy, copy_files
from build_engines.cache.release_cache import Pulled, ReleaseCache
from ensemble_configs.releases.file_hashes import hash_file
from ensemble_configs.releases.release_lock import in_use, lock_file, locked
from ensemble_configs.releases.release_manifest import address, load_manifest, seal, verify
from ensemble_configs.render.repository import write_repository
from ensemble_configs.spec.deployment import DeploymentSpec
from serving.engine_process.engine_sources import OwnedEngine
from trireme.base.errors import SpecError

MODEL = "engine/openvino_model.bin"
MB = 10**6


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def pull(
    cache: Path,
    source: Path,
    *,
    max_bytes: int = 10**9,
    num_jobs: int = 4,
    on_bytes: Callable[[int], object] = id,
) -> Pulled:
    here = ReleaseCache(cache, max_bytes=max_bytes, tell=print)
    return here.pull(source, num_jobs=num_jobs, on_bytes=on_bytes)


def releases(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir() if not path.name.startswith(".")}


@pytest.fixture(autouse=True)
def cache_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "hashes"))


@pytest.fixture
def release(tmp_path: Path) -> Path:
    folder = write_demo_release(tmp_path / "release")
    (folder / "provenance.json").write_text("{}")
    (folder / "release.sig").write_bytes(b"signature")
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_a_pulled_release_is_that_of_the_source_byte_by_byte(release: Path, cache: Path) -> None:
    steps: list[int] = []
    pulled = pull(cache, release, on_bytes=steps.append)
    assert pulled.folder == cache / address(release)
    assert tree(pulled.folder) == tree(release)
    verify(pulled.folder)
    assert pulled.num_copied_bytes == pulled.num_bytes == sum(steps) == sum(map(len, tree(release).values()))
    assert pulled.copy_s > 0 < pulled.read_s
    assert not list((cache / ".staging").iterdir())


def test_what_is_there_is_not_copied_again_and_gets_what_came_beside_it_later(release: Path, cache: Path) -> None:
    first = pull(cache, release)
    inode = (first.folder / MODEL).stat().st_ino
    (release / "release.sig").write_bytes(b"another")
    again = pull(cache, release)
    assert (again.folder, again.num_copied_bytes) == (first.folder, 0)
    assert (again.folder / MODEL).stat().st_ino == inode
    assert tree(again.folder) == tree(release)


def test_a_copy_in_the_cache_that_was_altered_is_told(release: Path, cache: Path) -> None:
    folder = pull(cache, release).folder
    alter_a_byte(folder / MODEL)
    with pytest.raises(SpecError, match=rf"file {MODEL}: .*remove {folder}, and pull again"):
        pull(cache, release)


def staged(cache: Path, source: Path) -> Path:
    """Return where an interrupted pull has left what it had."""
    return cache / ".staging" / address(source)


@pytest.mark.parametrize(
    ("content", "num_copied"),
    [
        pytest.param(lambda whole: whole[: 3 * MB], lambda whole: len(whole) - 3 * MB, id="the beginning"),
        pytest.param(lambda whole: whole, lambda _whole: 0, id="all of it"),
        pytest.param(lambda whole: b"\1" + whole[1 : 3 * MB], len, id="another beginning"),
        pytest.param(lambda whole: whole + b"more", lambda _whole: 0, id="more than all of it"),
    ],
)
def test_a_pull_goes_on_where_an_earlier_one_ended(
    release: Path, cache: Path, content: Callable[[bytes], bytes], num_copied: Callable[[bytes], int]
) -> None:
    whole = (release / MODEL).read_bytes()
    left = staged(cache, release) / MODEL
    left.parent.mkdir(parents=True)
    left.write_bytes(content(whole))
    (staged(cache, release) / "engine/rubbish").write_bytes(b"of another version")
    steps: list[int] = []
    pulled = pull(cache, release, on_bytes=steps.append)
    assert tree(pulled.folder) == tree(release)
    assert pulled.num_copied_bytes == pulled.num_bytes - len(whole) + num_copied(whole)
    assert sum(steps) == pulled.num_bytes


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        pytest.param(lambda r: alter_a_byte(r / MODEL), rf"{MODEL} is not what its release lists", id="altered"),
        pytest.param(lambda r: (r / MODEL).write_bytes(b"x"), rf"{MODEL} is not what its release lists", id="cut"),
        pytest.param(lambda r: (r / MODEL).unlink(), rf"cannot read .*{MODEL}: No such file .* pull again", id="gone"),
        pytest.param(lambda r: (r / "release.json").unlink(), "has no release.json", id="no release"),
        pytest.param(shutil.rmtree, "does not exist", id="source gone"),
    ],
)
def test_a_source_that_is_not_whole_leaves_nothing_that_could_be_loaded(
    release: Path, cache: Path, damage: Callable[[Path], None], words: str
) -> None:
    damage(release)
    with pytest.raises(SpecError, match=words):
        pull(cache, release)
    assert not cache.exists() or not releases(cache)


def test_a_source_that_changes_while_it_is_copied_is_noticed(release: Path, cache: Path) -> None:
    def cut(_num_bytes: int) -> None:
        os.truncate(release / MODEL, 10)

    with pytest.raises(SpecError, match=rf"{MODEL} is not what its release lists"):
        pull(cache, release, on_bytes=cut)
    assert not releases(cache)


def test_a_source_that_is_sealed_again_while_it_is_copied_is_noticed(release: Path, cache: Path) -> None:
    once = iter([load_manifest(release).model_copy(update={"name": "other"})])

    def seal_again(_num_bytes: int) -> None:
        for manifest in once:
            seal(release, manifest)

    with pytest.raises(SpecError, match=r"release\.json is not what its release lists .* if it was sealed meanwhile"):
        pull(cache, release, num_jobs=1, on_bytes=seal_again)  # the manifest, a small file, comes last
    assert not releases(cache)
    assert pull(cache, release).folder.name == address(release)


def test_a_target_that_cannot_be_written_is_told_with_what_to_do(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"content")
    blocked = tmp_path / "a file"
    blocked.touch()
    copy = FileCopy(source, blocked / "below it", hash_file(source), 7)
    with pytest.raises(SpecError, match=r"cannot write .*below it: .*; see who may write there, and pull again"):
        copy_files([copy], num_jobs=1, on_bytes=id)


def test_who_pulls_what_is_being_pulled_waits_for_it(release: Path, cache: Path) -> None:
    is_copying, may_go_on, is_waiting = threading.Event(), threading.Event(), threading.Event()

    def hold(_num_bytes: int) -> None:
        is_copying.set()
        assert may_go_on.wait(30)

    def tell(text: str) -> None:
        assert "waiting for another pull" in text
        is_waiting.set()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(pull, cache, release, on_bytes=hold)
        assert is_copying.wait(30)
        other = ReleaseCache(cache, max_bytes=10**9, tell=tell)
        second = pool.submit(other.pull, release, num_jobs=1, on_bytes=id)
        assert is_waiting.wait(30)
        assert not releases(cache)
        may_go_on.set()
        assert second.result(30).num_copied_bytes == 0
        assert first.result(30).folder == second.result(30).folder


# Releases of six megabytes each.


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    return [write_demo_release(tmp_path / name, name=name) for name in ("a", "b", "c")]


def size(release: Path) -> int:
    return sum(map(len, tree(release).values()))


def used_at(cache: Path, source: Path, seconds: int) -> None:
    os.utime(lock_file(cache / address(source)), (seconds, seconds))


def test_what_was_used_longest_ago_makes_room(three: list[Path], cache: Path) -> None:
    a, b, c = three
    for source in (a, b):
        pull(cache, source)
    used_at(cache, a, 2)
    used_at(cache, b, 1)
    pulled = pull(cache, c, max_bytes=size(a) + size(c) + 10)
    assert pulled.evicted == (address(b),)
    assert releases(cache) == {address(a), address(c)}


def test_using_a_release_makes_it_young(three: list[Path], cache: Path) -> None:
    a, b, c = three
    for number, source in enumerate((a, b)):
        pull(cache, source)
        used_at(cache, source, number + 1)
    with in_use(cache / address(a)):
        pass
    assert pull(cache, c, max_bytes=size(a) + size(c) + 10).evicted == (address(b),)


def test_what_is_in_use_is_not_evicted(three: list[Path], cache: Path) -> None:
    a, b, c = three
    for number, source in enumerate((a, b)):
        pull(cache, source)
        used_at(cache, source, number + 1)
    with in_use(cache / address(a)):
        used_at(cache, a, 1)
        assert pull(cache, c, max_bytes=size(a) + size(c) + 10).evicted == (address(b),)
    assert releases(cache) == {address(a), address(c)}


def test_nothing_is_evicted_where_that_would_not_be_enough(three: list[Path], cache: Path) -> None:
    a, b, c = three
    pull(cache, a)
    pull(cache, b)
    with (
        in_use(cache / address(a)),
        pytest.raises(SpecError, match=r"no room for .* and of 2 other releases 1 are in use; raise --max-bytes"),
    ):
        pull(cache, c, max_bytes=size(c) + 10)
    assert releases(cache) == {address(a), address(b)}
    with pytest.raises(SpecError, match="no room for"):
        pull(cache, c, max_bytes=size(c) - 1)
    assert releases(cache) == {address(a), address(b)}


def test_an_interrupted_pull_counts_and_makes_room_as_a_release_does(three: list[Path], cache: Path) -> None:
    a, b, _ = three
    with pytest.raises(RuntimeError, match="interrupted"):
        pull(cache, a, on_bytes=interrupt)
    assert staged(cache, a).is_dir()
    pulled = pull(cache, b, max_bytes=size(b) + 10)
    assert pulled.evicted == (address(a),)
    assert not staged(cache, a).exists()


def interrupt(_num_bytes: int) -> None:
    raise RuntimeError("interrupted")


def test_what_a_killed_eviction_has_left_is_removed(three: list[Path], cache: Path) -> None:
    rest = cache / ".trash" / ("0" * 64)
    rest.mkdir(parents=True)
    (rest / "weights").write_bytes(b"x")
    pull(cache, three[0])
    assert not rest.exists()


def test_an_engine_keeps_its_release_in_the_cache(release: Path, cache: Path, tmp_path: Path) -> None:
    folder = pull(cache, release).folder
    spec = DeploymentSpec.model_validate(
        {"name": "x", "release_dir": folder, "engine": {"provider": "openvino", "num_kv_blocks": 64}}
    )
    write_repository(spec, root=tmp_path / "models", source="test")
    engine = OwnedEngine(tmp_path / "models/tensorrt_llm/1")
    channel, _ = engine.connect()
    try:
        with locked(lock_file(folder), is_shared=False) as is_free:
            assert not is_free
        assert pull(cache, release).folder == folder  # another user, not one who waits
    finally:
        channel.close()
        engine.discard(ends_itself=True)
    with locked(lock_file(folder), is_shared=False) as is_free:
        assert is_free


def test_the_release_that_is_pulled_from_may_be_in_a_cache_itself(release: Path, cache: Path, tmp_path: Path) -> None:
    first = pull(cache, release).folder
    second = pull(tmp_path / "second", first).folder
    assert tree(second) == tree(release)


def test_an_engine_of_many_ranks_is_pulled_too(tmp_path: Path, cache: Path) -> None:
    source = write_gpu_release(tmp_path / "ranks", tp_size=16, world_size=16)
    assert tree(pull(cache, source).folder) == tree(source)
