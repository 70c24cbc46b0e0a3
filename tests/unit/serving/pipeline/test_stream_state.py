# SPDX-License-Identifier: Apache-2.0
"""The messages between steps survive the way through a tensor, and nothing else is taken for a message."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from serving.requests.stream_state import (
    StreamCheck,
    StreamContext,
    StreamState,
    keys_decoder,
    new_stream_key,
    pack,
    unpack_context,
    unpack_state,
)
from trireme.base.errors import RequestError

BIG = 2**63  # above every key: 62 random bits and a count


def test_a_context_comes_back_as_it_was() -> None:
    for context in (StreamContext(BIG), StreamContext(1, ("\n", "終わり", "a" * 1000))):
        packed = pack(context)
        assert packed.dtype == np.uint8
        assert packed.shape == (1, packed.size)
        assert unpack_context(packed.tobytes()) == context


@pytest.mark.parametrize(
    "state",
    [StreamState(BIG, True), StreamState(1, False, 7, ("stop",)), StreamCheck({BIG: 3, 2: 1}, (4, 5)), StreamCheck({})],
)
def test_a_state_and_a_check_come_back_as_what_they_were(state: StreamState | StreamCheck) -> None:
    assert unpack_state(pack(state).tobytes()) == state


@pytest.mark.parametrize("packed", [b"", b"\xff", b"\x93\x01\x02", b"\x92\xa1x\x90", b"\x94\x02\x01\xc3\x90"])
def test_what_somebody_else_wrote_is_refused_by_name(packed: bytes) -> None:
    with pytest.raises(RequestError, match="stream_context is for the ensemble's own use; leave it out"):
        unpack_context(packed)
    with pytest.raises(RequestError, match="stream_state is for the ensemble's own use; leave it out"):
        unpack_state(packed)


def test_no_two_streams_have_the_same_name_whichever_thread_they_come_from() -> None:
    with ThreadPoolExecutor(4) as pool:
        keys = list(pool.map(lambda _: new_stream_key(), range(1000)))
    assert len(set(keys)) == 1000
    assert all(0 <= key < BIG for key in keys)


def test_the_answer_to_a_check_is_a_list_of_keys() -> None:
    assert keys_decoder.decode(b"\x92\xcf\x80\x00\x00\x00\x00\x00\x00\x00\x01") == [BIG, 1]
