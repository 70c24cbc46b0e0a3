# SPDX-License-Identifier: Apache-2.0
"""Logits, beams and what is handed over stay with their tokens when chunks are joined, cut and answered."""

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
from recording_sink import RecordingSink
from simulated_release import TOKENIZER
from test_stopping_engine import PROMPTS, ScriptedEngine, request

from ensemble_configs.spec.release_spec import TokenizerSpec
from serving.engine_process.engine_messages import Step
from serving.engine_process.stopping_engine import StoppingEngine
from serving.engines.seam.base import Beam, EngineStats, ExtraOutputs, FinishReason, TokenChunk
from serving.engines.seam.packed_array import PackedArray, first_rows, join_rows
from serving.pipeline.reply_tensors import reply_tensors, text_tensors
from serving.pipeline.response_coalescing import ResponseCoalescer
from serving.pipeline.running_request import Reply, RunningRequest
from serving.pipeline.text_step import TextStep
from serving.requests.engine_request import ResponseOptions
from serving.requests.stream_state import StreamState, pack
from serving.text.detokenization import TextDecoder

DECODER = TextDecoder.from_spec(TokenizerSpec(dir=TOKENIZER, add_special_tokens=False))
LENGTH = FinishReason.LENGTH


def rows(*values: float) -> PackedArray:
    """Return a row of two for each value."""
    return PackedArray.of(np.array([[value, value] for value in values], dtype=np.float32))


def running(**options: Any) -> RunningRequest:
    times: Any = SimpleNamespace(arrival_ns=0)
    return RunningRequest(RecordingSink(), "id", ResponseOptions(input_ids=[1, 2], **options), None, False, times)


def test_an_array_comes_back_as_it_was() -> None:
    array = np.arange(6, dtype=np.float16).reshape(2, 3)
    packed = msgspec.msgpack.decode(msgspec.msgpack.encode(PackedArray.of(array)), type=PackedArray)
    assert packed.array().tolist() == array.tolist()
    assert packed.array().dtype == np.float16
    assert join_rows([packed, packed]).array().tolist() == [*array.tolist(), *array.tolist()]
    assert first_rows(packed, 1).array().tolist() == array[:1].tolist()
    assert repr(packed) == "float16[2, 3]", "a refusal does not print its bytes"


def test_what_a_chunk_does_not_have_costs_a_byte_each() -> None:
    stats = EngineStats(num_running=1, num_waiting=0, num_used_kv_blocks=1, num_kv_blocks=2, num_steps=3)
    without, more = (msgspec.msgpack.encode(Step([TokenChunk(1, [5])] * count, stats)) for count in (1, 2))
    assert len(more) - len(without) == len(msgspec.msgpack.encode([1, [5], *[None] * 6]))


def test_logits_are_joined_with_the_tokens_that_leave_together() -> None:
    chunks = [
        TokenChunk(1, [10], extras=ExtraOutputs(generation_logits=rows(1), context_logits=rows(8, 9))),
        TokenChunk(1, [11], extras=ExtraOutputs(generation_logits=rows(2))),
        TokenChunk(1, [12], LENGTH, extras=ExtraOutputs(generation_logits=rows(3), context_phase_params=b"x")),
    ]
    [chunk] = ResponseCoalescer(lambda: 0.0).due(chunks)
    assert chunk.extras == ExtraOutputs(
        generation_logits=rows(1, 2, 3), context_logits=rows(8, 9), context_phase_params=b"x"
    )


def test_a_whole_response_has_what_all_chunks_had() -> None:
    request = running()
    assert request.reply_to(TokenChunk(7, [10], extras=ExtraOutputs(generation_logits=rows(1)))) is None
    reply = request.reply_to(TokenChunk(7, [11], LENGTH, extras=ExtraOutputs(generation_logits=rows(2))))
    assert reply is not None
    assert reply.extras == ExtraOutputs(generation_logits=rows(1, 2))


def test_a_stream_has_the_logits_of_its_prompt_in_its_first_and_its_last_response() -> None:
    request = running(is_streaming=True)
    chunks = [
        TokenChunk(7, [10], extras=ExtraOutputs(context_logits=rows(8, 9))),
        TokenChunk(7, [11]),
        TokenChunk(7, [12], LENGTH),
    ]
    replies = [request.reply_to(chunk) for chunk in chunks]
    told = [reply is not None and reply.extras is not None and reply.extras.context_logits for reply in replies]
    assert told == [rows(8, 9), False, rows(8, 9)]


def test_logits_end_with_the_token_that_completes_a_stop_string() -> None:
    ids = PROMPTS.encode("one two three").tolist()
    chunk = TokenChunk(1, ids, LENGTH, extras=ExtraOutputs(generation_logits=rows(*range(len(ids)))))
    engine = StoppingEngine(ScriptedEngine([chunk]), DECODER)
    engine.add(request(1, "two"))
    [cut] = engine.step()
    assert cut.finish_reason is FinishReason.STOP_STRING
    assert cut.extras is not None
    assert cut.extras.generation_logits == rows(*range(len(cut.token_ids)))
    assert len(cut.token_ids) < len(ids)


def test_each_beam_is_cut_at_its_own_stop_string_and_the_best_speaks_for_all() -> None:
    texts = ["one two three", "one three", "two one"]
    all_ids = [PROMPTS.encode(text).tolist() for text in texts]
    beams = [Beam(list(ids), -1.0, [-0.5] * len(ids)) for ids in all_ids]
    chunk = TokenChunk(1, beams[0].token_ids, LENGTH, log_probs=beams[0].log_probs, extras=ExtraOutputs(beams))
    engine = StoppingEngine(ScriptedEngine([chunk]), DECODER)
    engine.add(request(1, "two"))
    [cut] = engine.step()
    assert cut.extras is not None
    assert cut.extras.beams is not None
    lengths = [len(beam.token_ids) for beam in cut.extras.beams]
    assert [len(beam.log_probs or []) for beam in cut.extras.beams] == lengths
    assert [length < len(ids) for length, ids in zip(lengths, all_ids, strict=True)] == [True, False, True]
    assert (cut.token_ids, cut.finish_reason) == (cut.extras.beams[0].token_ids, FinishReason.STOP_STRING)


BEAMS = [Beam([10, 11, 12], -1.0, [-0.5, -0.25, -0.25], rows(1, 2, 3)), Beam([10, 13], -2.0, [-0.5, -1.5], rows(1, 4))]
SEARCHED = TokenChunk(7, [10, 11, 12], LENGTH, log_probs=[-0.5, -0.25, -0.25], extras=ExtraOutputs(BEAMS))


def answer(*, is_echoed: bool = False, **options: Any) -> Reply:
    times: Any = SimpleNamespace(arrival_ns=0)
    given = ResponseOptions(input_ids=[1, 2], return_num_output_tokens=True, **options)
    request = RunningRequest(RecordingSink(), "id", given, None, is_echoed, times, returns_log_probs=True)
    reply = request.reply_to(SEARCHED)
    assert reply is not None
    return reply


def test_beams_have_upstreams_shapes_padded_to_the_longest() -> None:
    tensors = reply_tensors(answer())
    assert tensors["output_ids"].tolist() == [[[10, 11, 12], [10, 13, -1]]]
    assert tensors["sequence_length"].tolist() == [[3, 2]]
    assert tensors["cum_log_probs"].tolist() == [[-1.0, -2.0]]
    assert tensors["output_log_probs"].tolist() == [[[-0.5, -0.25, -0.25], [-0.5, -1.5, 0.0]]]
    assert tensors["generation_logits"].shape == (1, 2, 3, 2)
    assert tensors["generation_logits"][0, 1].tolist() == [[1, 1], [4, 4], [0, 0]]
    assert tensors["num_output_tokens"].tolist() == [[5]], "tokens, not padding"
    assert text_tensors(answer(), [b"a", b"b"])["text_output"].tolist() == [b"a", b"b"]


def test_as_many_beams_come_back_as_were_asked_for_each_behind_the_prompt_where_it_is_echoed() -> None:
    assert reply_tensors(answer(num_return_sequences=1))["output_ids"].tolist() == [[[10, 11, 12]]]
    echoed = reply_tensors(answer(is_echoed=True))
    assert echoed["output_ids"].tolist() == [[[1, 2, 10, 11, 12], [1, 2, 10, 13, -1]]]
    assert echoed["num_output_tokens"].tolist() == [[5]], "generated ones"


def test_the_last_step_of_the_graph_gives_the_text_of_every_beam() -> None:
    ids = [PROMPTS.encode(text).tolist() for text in ("one two", "three")]
    width = max(map(len, ids))
    padded = np.array([[one + [-1] * (width - len(one)) for one in ids]], dtype=np.int32)
    texts = TextStep(DECODER).respond(
        {
            "TOKENS_BATCH": padded,
            "SEQUENCE_LENGTH": np.array([[len(one) for one in ids]], dtype=np.int32),
            "STREAM_STATE": pack(StreamState(5, is_final=True, stop_strings=("two",))),
        }
    )
    assert [text.decode().strip() for text in texts] == ["one", "three"]
