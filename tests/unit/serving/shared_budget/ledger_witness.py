# SPDX-License-Identifier: Apache-2.0
"""A process that takes and gives back units of a shared ledger as fast as it can, until it is killed.

While it holds n units it holds the locks of n out of as many files as there are units. If the ledger ever let more be
held than there is, some process finds no such file, says so and ends.
"""

import contextlib
import fcntl
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from serving.shared_budget.shared_ledger import SharedLedger

COUNTS = {"units": 3, "memory": 80}
_NUM_LOOKS = 300  # others change files between two looks; much less than a pause of theirs
_PAUSE_S = 0.01


def main(folder: Path, member: str, seed: int) -> None:
    rng = random.Random(seed)
    # Before the ledger: of a process that is killed the kernel closes the files in this order.
    files = [os.open(folder / f"unit-{number}", os.O_CREAT | os.O_RDWR) for number in range(COUNTS["units"])]
    ledger = SharedLedger(folder / "ledger", member=member, weight=rng.choice([1, 2, 4]), counts=COUNTS)
    while True:
        amounts = {"units": rng.randint(1, 3), "memory": rng.choice([1, 30, 80])}
        if not ledger.try_acquire(amounts):
            if rng.random() < 0.1:
                ledger.withdraw()
            continue
        with contextlib.ExitStack() as held:
            for _ in range(amounts["units"]):
                if (lock := _lock_any(files)) is None:
                    sys.exit(f"{member} holds {amounts}, but no unit is free")
                held.enter_context(lock)
            if rng.random() < 0.1:
                time.sleep(_PAUSE_S)
        ledger.release(amounts)


def _lock_any(files: list[int]) -> contextlib.AbstractContextManager[None] | None:
    for _ in range(_NUM_LOOKS):
        for file in files:
            with contextlib.suppress(BlockingIOError):
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                files.remove(file)  # a process is not in its own way
                return _locked(file, files)
    return None


@contextlib.contextmanager
def _locked(file: int, files: list[int]) -> Iterator[None]:
    try:
        yield
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN)
        files.append(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
