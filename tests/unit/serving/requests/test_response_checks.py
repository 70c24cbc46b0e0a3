# SPDX-License-Identifier: Apache-2.0
"""Responses that cannot be are refused before anything is generated, by the name that the client knows."""

import msgspec
import pytest
from recording_sink import RecordingSink
from test_engine_request import INFO

from serving.pipeline.response_checks import check_response
from serving.requests.engine_request import ResponseOptions
from trireme.base.errors import RequestError

WITHOUT_BLOCKS = msgspec.structs.replace(INFO, why_not={"kv_cache_reused_blocks": "nobody counts them"})


class NamingSink(RecordingSink):
    """The sink of a client that names outputs, on a server that streams or does not."""

    def __init__(self, *outputs: str, takes_one: bool = False) -> None:
        super().__init__()
        self.outputs = outputs
        self.takes_one = takes_one

    def named_outputs(self) -> tuple[str, ...]:
        return self.outputs


MEASURED = ResponseOptions(return_perf_metrics=True)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (ResponseOptions(is_streaming=True), "streaming"),
        (ResponseOptions(is_streaming=True, stream_context=b"x"), "stream"),
    ],
)
def test_a_stream_from_a_unary_server_is_refused_by_the_name_that_was_sent(options: ResponseOptions, name: str) -> None:
    check_response([options], NamingSink(), INFO)
    with pytest.raises(RequestError, match=rf"leave {name} out, or set decoupled: true") as refusal:
        check_response([ResponseOptions(), options], NamingSink(takes_one=True), INFO)
    assert refusal.value.facts == {"field": name, "value": True}


@pytest.mark.parametrize("outputs", [(), ("text_output", "kv_cache_reused_blocks")], ids=["all", "by name"])
def test_a_measurement_that_the_engine_has_not_is_refused_with_those_that_it_has(outputs: tuple[str, ...]) -> None:
    check_response([MEASURED], NamingSink(*outputs), INFO)
    with pytest.raises(RequestError, match=r"nobody counts them; .* alone: kv_cache_alloc_new_blocks, ") as refusal:
        check_response([MEASURED], NamingSink(*outputs), WITHOUT_BLOCKS)
    assert refusal.value.facts["field"] == "kv_cache_reused_blocks"


def test_who_names_only_what_there_is_gets_it_and_who_asks_for_none_is_not_looked_at() -> None:
    check_response([MEASURED], NamingSink("text_output", "arrival_time_ns"), WITHOUT_BLOCKS)
    check_response([ResponseOptions()], NamingSink("kv_cache_reused_blocks"), WITHOUT_BLOCKS)
