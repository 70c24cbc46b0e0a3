# SPDX-License-Identifier: Apache-2.0
"""The file of a shared ledger: its words in memory, and the locks by which its members know each other to be alive.

What `serving.shared_budget.shared_ledger` decides is written here. Nothing in the file can be left in a state that
hurts, whenever a member is killed:

- A member writes into its own slot, and into words of the header of which each is right by itself, before a change and
  behind it. A machine word is written at once. Counts over all members are not kept but added up anew.
- A member holds a lock on the byte of its slot, from its joining to its end. A slot without a lock counts for nothing,
  torn or not.
- Whoever looks at several slots and writes holds the ledger's lock; the kernel takes both from a process that ends.

The locks belong to the open file (F_OFD_SETLK), so two members may live in one process.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import struct
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from trireme.base.errors import ServerError

MAX_RESOURCES = 32  # ensemble_configs.spec.deployment_checks refuses more
MAX_MEMBERS = 64
MAX_NAME_BYTES = 72  # whole words; a name in a deployment has up to 64, and `pool_` stands before that of a pool

_WORD_BYTES = 8
_NAME_WORDS = MAX_NAME_BYTES // _WORD_BYTES
_MAGIC = 0x5452_4C45_4447_0003  # the last two bytes: of this layout
# Words of the header.
_MAGIC_AT, NUM_RESOURCES, NUM_SLOTS, NEWEST_START = range(4)
_RESOURCES_AT, _RESOURCE_WORDS = 8, 16
COUNT, HIGH_WATER = _NAME_WORDS, _NAME_WORDS + 1  # of a resource, behind its name
_SLOTS_AT = _RESOURCES_AT + MAX_RESOURCES * _RESOURCE_WORDS
# Words of a slot, and behind them those of its name, what it holds and what it wants of each resource.
PID, WEIGHT, TAG, NUM_WAITING, WORK, WAITS_SINCE, ASKED_LAST, NUM_STARTS, USES, _NAME_AT = range(10)
HELD = _NAME_AT + _NAME_WORDS
WANTED = HELD + MAX_RESOURCES
_SLOT_WORDS = WANTED + MAX_RESOURCES
_SIZE_BYTES = (_SLOTS_AT + MAX_MEMBERS * _SLOT_WORDS) * _WORD_BYTES

_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux
_LEDGER_BYTE, _FIRST_SLOT_BYTE = 0, 1
_RETRY_S = 0.000_05
_JOIN_TIMEOUT_S = 5.0

_open_files: weakref.WeakSet["LedgerFile"] = weakref.WeakSet()


class LedgerFile:
    """The view that one member has of the ledger's file; for one thread.

    Attributes:
        words, floats: the mapped memory, as whole numbers and as floating-point numbers.
        slot: index of the first word of this member's slot.
    """

    def __init__(self, path: Path) -> None:
        """Open and map the file.

        Raises:
            OSError: the file cannot be made or mapped.
        """
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._fd, _SIZE_BYTES)  # the same size whichever member comes first
        # Opened once more, for a mapping keeps a descriptor open: the locks are to end with one `close`.
        with path.open("r+b") as mapped:
            self._map = mmap.mmap(mapped.fileno(), _SIZE_BYTES)
        self._bytes = memoryview(self._map)
        self.words = self._bytes.cast("q")
        self.floats = self._bytes.cast("d")
        self.slot = -1
        _open_files.add(self)

    def close(self) -> None:
        """Give up the slot with all that it holds."""
        for view in (self.words, self.floats, self._bytes):
            view.release()
        self._map.close()
        self.leave_to_parent()

    def leave_to_parent(self) -> None:
        """Close the file in a forked child, so that the parent's locks do not outlive the parent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @contextlib.contextmanager
    def locked(self, *, timeout_s: float = _JOIN_TIMEOUT_S) -> Iterator[None]:
        """Hold the ledger's lock. Nobody keeps it longer than it takes to add up the members.

        Raises:
            ServerError: another process keeps the lock for `timeout_s` seconds; it was stopped meanwhile.
        """
        if not self.try_lock(timeout_s=timeout_s):
            raise ServerError(f"{self.path} has been locked for {timeout_s:g} s; is one of its processes stopped?")
        try:
            yield
        finally:
            self.unlock()

    def try_lock(self, *, timeout_s: float) -> bool:
        """Take the ledger's lock; return False if another process still holds it after `timeout_s` seconds."""
        num_tries = 1 + int(timeout_s / _RETRY_S)
        for left in reversed(range(num_tries)):
            if self._lock_byte(_LEDGER_BYTE):
                return True
            if left:
                time.sleep(_RETRY_S)
        return False

    def unlock(self) -> None:
        """Release the ledger's lock."""
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_UNLCK, os.SEEK_SET, _LEDGER_BYTE, 1, 0))

    def take_slot(self) -> None:
        """Take a slot that no living member has, and empty it, under the ledger's lock.

        The first member empties the whole file.

        Raises:
            ServerError: as many members are alive as there can be.
        """
        if self.words[_MAGIC_AT] != _MAGIC or not any(self._is_alive(number) for number in range(MAX_MEMBERS)):
            self.words[_MAGIC_AT] = 0
            for word in range(1, len(self.words)):
                self.words[word] = 0
            self.words[_MAGIC_AT] = _MAGIC
        for number in range(MAX_MEMBERS):
            if self._lock_byte(_FIRST_SLOT_BYTE + number):
                self.slot = _SLOTS_AT + number * _SLOT_WORDS
                for word in range(self.slot, self.slot + _SLOT_WORDS):
                    self.words[word] = 0
                self.words[NUM_SLOTS] = max(self.words[NUM_SLOTS], number + 1)
                return
        raise ServerError(f"{self.path} has {MAX_MEMBERS} members already; stop one of their processes")

    def slots(self) -> range:
        """Return the index of the first word of each slot ever taken; PID is 0 in slots without a member."""
        return range(_SLOTS_AT, _SLOTS_AT + self.words[NUM_SLOTS] * _SLOT_WORDS, _SLOT_WORDS)

    def forget_dead(self) -> bool:
        """Empty the slots of members that have ended, under the ledger's lock; return whether there was one."""
        is_changed = False
        for slot in self.slots():
            if self.words[slot + PID] and not self._is_alive((slot - _SLOTS_AT) // _SLOT_WORDS):
                self.words[slot + PID] = 0
                is_changed = True
        return is_changed

    def resources(self) -> Iterator[tuple[str, int]]:
        """Yield the name of each resource and the index of its first word."""
        for number in range(self.words[NUM_RESOURCES]):
            at = _RESOURCES_AT + number * _RESOURCE_WORDS
            yield self._name(at), at

    def add_resource(self, name: str, count: int) -> None:
        """Add a resource, under the ledger's lock.

        Raises:
            ServerError: as many resources are named as there can be.
        """
        number = self.words[NUM_RESOURCES]
        if number == MAX_RESOURCES:
            raise ServerError(f"{self.path} has {MAX_RESOURCES} resources already; name fewer")
        at = _RESOURCES_AT + number * _RESOURCE_WORDS
        self._put_name(at, name)
        self.words[at + COUNT], self.words[at + HIGH_WATER] = count, 0
        self.words[NUM_RESOURCES] = number + 1  # last: until now there is none

    def member_name(self, slot: int) -> str:
        """Return the name with which a member has joined."""
        return self._name(slot + _NAME_AT)

    def put_member_name(self, name: str) -> None:
        """Write a name into this member's slot."""
        self._put_name(self.slot + _NAME_AT, name)

    def _name(self, at: int) -> str:
        return bytes(self._bytes[at * _WORD_BYTES :][:MAX_NAME_BYTES]).rstrip(b"\0").decode()

    def _put_name(self, at: int, name: str) -> None:
        self._bytes[at * _WORD_BYTES :][:MAX_NAME_BYTES] = name.encode().ljust(MAX_NAME_BYTES, b"\0")

    def _is_alive(self, number: int) -> bool:
        if self.slot == _SLOTS_AT + number * _SLOT_WORDS:
            return True  # one's own locks are not in one's way
        probe = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, _FIRST_SLOT_BYTE + number, 1, 0)
        return bool(struct.unpack(_FLOCK, fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, probe))[0] != fcntl.F_UNLCK)

    def _lock_byte(self, byte: int) -> bool:
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
        except OSError as exc:
            if exc.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True


def _leave_files_to_parent() -> None:
    for file in list(_open_files):
        file.leave_to_parent()


os.register_at_fork(after_in_child=_leave_files_to_parent)
