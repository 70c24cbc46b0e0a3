# SPDX-License-Identifier: Apache-2.0
"""Who uses a release of a local cache (`build_engines.release_cache`): a lock file each, beside the releases.

`CACHE/.locks/NAME` is shared by everybody who serves `CACHE/NAME`, and held alone by whoever copies or evicts it. The
kernel gives it back when its holder ends, however that happens. The file's time is that of the last use.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

LOCKS = ".locks"


def lock_file(release: Path) -> Path:
    """The lock of a release in a cache; there is one as soon as somebody has pulled it."""
    return release.parent / LOCKS / release.name


@contextlib.contextmanager
def locked(path: Path, *, is_shared: bool, on_wait: Callable[[], None] | None = None) -> Iterator[bool]:
    """Hold a lock file. Without `on_wait`, a lock that others hold is not waited for: False is given instead.

    Raises:
        OSError: there is no such file.
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
    """Keep a release from being evicted; nothing happens where it does not lie in a cache."""
    path = lock_file(release.resolve())
    if not path.is_file():
        yield
        return
    with locked(path, is_shared=True, on_wait=lambda: None):
        with contextlib.suppress(PermissionError):  # the cache is somebody else's
            os.utime(path)
        yield
