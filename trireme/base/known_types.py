# SPDX-License-Identifier: Apache-2.0
"""Types that msgspec knows whole before threads read data as them.

msgspec (0.22) learns a struct when it first reads one, field by field, and keeps the half-learnt struct in the class
meanwhile: a second thread that reads the same struct at that moment ends the process by a segmentation fault. So every
type that data is read as goes through `known`, which learns it alone.
"""

import threading
from typing import TypeVar

import msgspec

T = TypeVar("T")

_LEARNING = threading.Lock()
_KNOWN: set[object] = set()


def known(kind: T) -> T:
    """Return a type for `msgspec.json.decode`, `msgspec.convert` or a `Decoder`, once msgspec knows it whole."""
    if kind not in _KNOWN:
        with _LEARNING:
            msgspec.msgpack.Decoder(kind)  # what reads JSON shares what is kept in the class
            _KNOWN.add(kind)
    return kind
