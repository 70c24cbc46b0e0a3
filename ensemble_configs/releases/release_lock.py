# SPDX-License-Identifier: Apache-2.0
"""Locks of built releases: a release that is served is not moved, sealed again or evicted.

RELEASE itself is locked, wherever it lies: shared by everybody who serves or reads it, and held alone by whoever writes
into it. In a cache (`build_engines.cache.release_cache`) there is a lock file, too: `CACHE/.locks/NAME` is shared in
the same way, and held alone by whoever copies or evicts `CACHE/NAME`. Its time is that of the last use. The kernel
gives a lock back when its holder ends, however that happens. Holders on another machine are not seen.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

LOCKS = ".locks"


def lock_file(release: Path) -> Path:
    """Return the lock file of a release in a cache; it exists as soon as the release was pulled once."""
    return release.parent / LOCKS / release.name


@contextlib.contextmanager
def locked(path: Path, *, is_shared: bool, on_wait: Callable[[], None] | None = None) -> Iterator[bool]:
    """Hold a file or a folder.

    Without `on_wait`, a path that others hold is not waited for: False is given instead.

    Raises:
        OSError: there is no such path, or it cannot be locked.
    """
    number = os.open(path, os.O_RDONLY)
    try:
        kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
        try:
            fcntl.flock(number, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if on_wait is None:
                yield False
                return
            on_wait()
            fcntl.flock(number, kind)
        yield True
    finally:
        os.close(number)


@contextlib.contextmanager
def in_use(release: Path) -> Iterator[None]:
    """Keep a release from being moved, sealed again or evicted; where there is none, nothing happens."""
    folder = release.resolve()
    with contextlib.ExitStack() as held:
        if (path := lock_file(folder)).is_file():
            held.enter_context(locked(path, is_shared=True, on_wait=lambda: None))
            with contextlib.suppress(PermissionError):  # the cache is somebody else's
                os.utime(path)
        with contextlib.suppress(OSError):  # no such folder, or a file system without locks
            held.enter_context(locked(folder, is_shared=True, on_wait=lambda: None))
        yield


@contextlib.contextmanager
def held_alone(release: Path) -> Iterator[bool]:
    """Keep a release from being used, to write into it; give False, and hold nothing, if the release is in use."""
    folder = release.resolve()
    with contextlib.ExitStack() as held:
        yield all(_is_free(path, held) for path in (lock_file(folder), folder))


def _is_free(path: Path, held: contextlib.ExitStack) -> bool:
    try:
        return held.enter_context(locked(path, is_shared=False))
    except OSError:  # not in a cache, or a file system without locks
        return True
