# SPDX-License-Identifier: Apache-2.0
"""Several sequences reply to one sink, which sees one request: one end, one error, and the sequence of each reply."""

import pytest
from recording_sink import RecordingSink

from serving.engines.seam.base import SamplingParams
from serving.pipeline.running_request import Reply
from serving.pipeline.sequence_group import Member, SequenceGroup, context_of, sampling_of
from serving.requests.stream_state import KEYS_PER_REQUEST, StreamContext, new_stream_key
from trireme.base.errors import ServerError


class Failures:
    """A counter of the calls of `on_failure`."""

    num_calls = 0

    def __call__(self) -> None:
        self.num_calls += 1


def group_of(num_sequences: int) -> tuple[SequenceGroup, RecordingSink, Failures]:
    sink, failures = RecordingSink(), Failures()
    members = [Member(None, index) for index in range(num_sequences)]
    return SequenceGroup(sink, members, on_failure=failures), sink, failures


def reply(token_id: int, *, is_final: bool) -> Reply:
    return Reply(token_ids=[token_id], is_final=is_final)


def test_only_the_very_last_reply_is_final_and_each_says_whose_it_is() -> None:
    group, sink, failures = group_of(2)
    group.sinks[1].send(reply(10, is_final=False))
    group.sinks[1].send(reply(11, is_final=True))
    group.sinks[0].send(reply(12, is_final=False))
    group.sinks[0].send(reply(13, is_final=True))
    assert [(r.sequence_index, r.token_ids, r.is_final) for r in sink.replies] == [
        (1, [10], False),
        (1, [11], False),
        (0, [12], False),
        (0, [13], True),
    ]
    assert (failures.num_calls, sink.violations) == (0, [])


def test_a_reply_says_of_which_prompt_and_of_which_of_its_sequences_it_is() -> None:
    sink = RecordingSink()
    members = [Member(0, None), Member(1, 0), Member(1, 1)]
    group = SequenceGroup(sink, members, on_failure=Failures())
    for index in (2, 0, 1):
        group.sinks[index].send(reply(index, is_final=True))
    assert [(r.token_ids, r.batch_index, r.sequence_index, r.is_final) for r in sink.replies] == [
        ([2], 1, 1, False),
        ([0], 0, None, False),
        ([1], 1, 0, True),
    ]


def test_the_first_failure_is_the_requests_and_nothing_follows_it() -> None:
    group, sink, failures = group_of(3)
    group.sinks[0].send(reply(10, is_final=True))
    group.sinks[1].fail(ServerError("lost"))
    group.sinks[2].send(reply(11, is_final=True))
    group.sinks[2].fail(ServerError("lost again"))
    assert sink.error is not None
    assert sink.error.message == "lost"
    assert (len(sink.replies), failures.num_calls, sink.violations) == (1, 1, [])


def test_a_failure_after_the_last_reply_is_not_told() -> None:
    group, sink, failures = group_of(2)
    for one in group.sinks:
        one.send(reply(10, is_final=True))
    group.sinks[0].fail(ServerError("too late"))
    assert (sink.error, failures.num_calls) == (None, 0)


def test_the_client_is_asked_for_as_long_as_the_request_is_open() -> None:
    group, sink, _ = group_of(2)
    sink.is_abandoned = True
    group.sinks[0].send(reply(10, is_final=True))
    assert group.sinks[1].is_cancelled()
    group.sinks[1].send(reply(11, is_final=True))
    assert not group.sinks[0].is_cancelled()
    assert sink.violations == []


@pytest.mark.parametrize(("seed", "index", "expected"), [(7, 0, 7), (7, 3, 10), (2**64 - 1, 1, 0), (None, 2, None)])
def test_a_sequence_has_the_given_seed_plus_its_index(seed: int | None, index: int, expected: int | None) -> None:
    assert sampling_of(SamplingParams(max_tokens=1, seed=seed), index).seed == expected


def test_the_streams_of_one_request_and_of_the_next_have_different_names() -> None:
    contexts = [StreamContext(new_stream_key(), ("stop",)) for _ in range(2)]
    streams = [context_of(context, index) for context in contexts for index in range(KEYS_PER_REQUEST)]
    assert len({stream.key for stream in streams if stream}) == 2 * KEYS_PER_REQUEST
    assert all(stream and stream.stop_strings == ("stop",) for stream in streams)
    assert context_of(None, 1) is None
