# SPDX-License-Identifier: Apache-2.0
"""The split of a running server: which release answers a request that names none, for how long, and by which key.

It is a file in the folder of the server's processes. The supervisor replaces it as a whole, and every model looks at it
with each request: a change holds from the next request on, and a model that was started anew needs to be told nothing.
A split has an end in time, which whoever drives it puts off again and again: without that, all is the stable release's.
"""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from trireme.base.durable_files import draft_of
from trireme.base.known_types import known


class ReleaseShare(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of [0, 1) that one release answers: the places below `upto`, from the end of the share before.

    Attributes:
        release: number of the release.
        arm: arm that the outcomes count for; "": they are not compared.
    """

    upto: float
    release: int
    arm: str = ""


class ReleaseSplit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The split of the requests of one model.

    Attributes:
        rollout, step: what the outcomes count for.
        hash_seed: seed of the places of keys.
        shares: the last ends at 1.
        journal: folder for outcomes.
        ends_s: end of the split in seconds of the machine's monotonic clock.
        key: what keeps requests on one release, ``tenant``, ``parameter:NAME`` or ``header:NAME``; "": nothing.
    """

    rollout: int
    step: int
    hash_seed: str
    shares: tuple[ReleaseShare, ...]
    journal: str
    ends_s: float
    key: str = ""

    def share_at(self, place: float) -> ReleaseShare:
        """Return the share that a place in [0, 1) lies in."""
        return next((each for each in self.shares if place < each.upto), self.shares[-1])


class SplitFile:
    """The file of the split of one model, which is read anew whenever it has changed.

    Args:
        run_dir: folder of the server's processes.
        prefix: prefix of the names of the model's Triton models.
        now_s: the machine's monotonic clock.
    """

    def __init__(self, run_dir: Path, prefix: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self._path = run_dir / f"split-{prefix}.json"
        self._now_s = now_s
        self._seen: tuple[int, int] | None = None  # inode and time of the file that `_split` is of
        self._split: ReleaseSplit | None = None

    def write(self, split: ReleaseSplit) -> None:
        """Replace the split, for every request from now on; for one thread at a time."""
        draft = draft_of(self._path)
        draft.write_bytes(msgspec.json.encode(split))
        draft.replace(self._path)

    def current(self) -> ReleaseSplit | None:
        """Return the split that holds now; None: the stable release answers everything."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        seen = (status.st_ino, status.st_mtime_ns)
        if seen != self._seen:
            self._split = msgspec.json.decode(self._path.read_bytes(), type=known(ReleaseSplit))
            self._seen = seen
        split = self._split
        return split if split is not None and self._now_s() < split.ends_s else None
