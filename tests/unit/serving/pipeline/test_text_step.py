# SPDX-License-Identifier: Apache-2.0
"""Chunks of tokens become text, stream by stream; the check finds abandoned streams, and nothing is kept for ever."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from simulated_release import TOKENIZER, write_release

from ensemble_configs.spec.release_spec import TokenizerSpec
from serving.pipeline.text_step import TextStep
from serving.requests.stream_state import StreamCheck, StreamState, keys_decoder, pack
from serving.text.detokenization import TextDecoder
from serving.text.tokenization import PromptTokenizer
from trireme.base.errors import RequestError, SpecError

SPEC = TokenizerSpec(dir=TOKENIZER, add_special_tokens=False)
DECODER = TextDecoder.from_spec(SPEC)
PROMPTS = PromptTokenizer.from_spec(SPEC)


@pytest.fixture
def step() -> TextStep:
    return TextStep(DECODER)


def tokens(text: str) -> list[int]:
    return list(map(int, PROMPTS.encode(text)))


def chunk(step: TextStep, token_ids: list[int], state: StreamState | None = None) -> str:
    """Return the text of one chunk of one beam, sent as the engine step sends it."""
    tensors: dict[str, npt.NDArray[np.generic]] = {"TOKENS_BATCH": np.array([[token_ids]], dtype=np.int32)}
    if state is not None:
        tensors["STREAM_STATE"] = pack(state)
    [text] = step.respond(tensors)
    assert isinstance(text, bytes)
    return text.decode()


def unread(step: TextStep, num_chunks: dict[int, int], lost_keys: tuple[int, ...] = ()) -> list[int]:
    one = np.ones((1, 1, 1), dtype=np.int32)
    [keys] = step.respond({"TOKENS_BATCH": one, "STREAM_STATE": pack(StreamCheck(num_chunks, lost_keys))})
    return keys_decoder.decode(keys)


def test_tokens_without_a_stream_are_decoded_by_themselves(step: TextStep) -> None:
    assert chunk(step, tokens("hello there")) == "hello there"
    assert chunk(step, []) == ""
    assert step.num_streams == 0


def test_each_beam_of_each_request_of_a_batch_is_decoded_without_its_padding(step: TextStep) -> None:
    beams = [[tokens("one two three"), tokens("four")], [tokens("five"), []]]
    lengths = np.array([[len(beam) for beam in beams_of_one] for beams_of_one in beams], dtype=np.int32)
    padded = np.zeros((2, 2, lengths.max() + 3), dtype=np.int32)
    for (row, column), length in np.ndenumerate(lengths):
        padded[row, column, :length] = beams[row][column]
    texts = step.respond({"TOKENS_BATCH": padded, "SEQUENCE_LENGTH": lengths})
    assert texts.dtype == np.object_
    assert texts.tolist() == [b"one two three", b"four", b"five", b""]
    without_lengths = step.respond({"TOKENS_BATCH": np.array([[beams[0][0]], [beams[0][0]]], dtype=np.int32)})
    assert without_lengths.tolist() == [b"one two three"] * 2


def test_a_character_cut_in_two_comes_whole_with_the_later_chunk(step: TextStep) -> None:
    ids = tokens("a 😀")
    assert len(ids) > 3, "the emoji is several tokens"
    text = [chunk(step, [token_id], StreamState(1, False)) for token_id in ids[:-1]]
    assert "�" not in "".join(text)
    assert "".join(text) + chunk(step, ids[-1:], StreamState(1, True)) == "a 😀"


def test_what_stays_incomplete_is_shown_at_the_end(step: TextStep) -> None:
    ids = tokens("😀")
    assert chunk(step, ids[:-1], StreamState(1, True)).endswith("�")


def test_two_streams_do_not_mix(step: TextStep) -> None:
    first, second = tokens("法国的首都"), tokens("フランスの首都")
    text = {1: "", 2: ""}
    for index in range(max(len(first), len(second))):
        for key, ids in ((1, first), (2, second)):
            if index < len(ids):
                text[key] += chunk(step, ids[index : index + 1], StreamState(key, index == len(ids) - 1))
    assert text == {1: "法国的首都", 2: "フランスの首都"}
    assert step.num_streams == 0


def test_the_text_is_cut_before_a_stop_string_that_came_with_the_first_chunk(step: TextStep) -> None:
    assert chunk(step, tokens("one tw"), StreamState(1, False, stop_strings=("two",))) == "one "
    assert chunk(step, tokens("o three"), StreamState(1, True)) == ""


def test_a_held_beginning_of_a_stop_string_is_given_out_at_the_end(step: TextStep) -> None:
    assert chunk(step, tokens("one tw"), StreamState(1, False, stop_strings=("two",))) == "one "
    assert chunk(step, [], StreamState(1, True)) == "tw"


def test_the_echoed_prompt_is_not_searched_for_stop_strings(step: TextStep) -> None:
    prompt, answer = tokens("say two"), tokens(" one two")
    state = StreamState(1, True, len(prompt), ("two",))
    assert chunk(step, prompt + answer, state) == "say two one "


def test_a_stream_is_kept_until_its_last_chunk(step: TextStep) -> None:
    chunk(step, tokens("a"), StreamState(1, False))
    chunk(step, tokens("b"), StreamState(2, False))
    assert step.num_streams == 2
    chunk(step, tokens("a"), StreamState(1, True))
    assert step.num_streams == 1


def test_the_check_names_streams_that_got_fewer_chunks_than_were_sent(step: TextStep) -> None:
    for key, num_chunks in ((1, 3), (2, 3)):
        for _ in range(num_chunks):
            chunk(step, tokens("a"), StreamState(key, False))
    assert unread(step, {1: 3, 2: 3}) == []
    assert unread(step, {1: 2, 2: 3}) == [], "more than were counted when the check began"
    assert unread(step, {1: 4, 2: 3}) == [1]
    assert unread(step, {1: 3, 2: 3, 9: 1}) == [9], "not one of its chunks came"
    assert unread(step, {}) == []
    assert step.num_streams == 2, "being counted changes nothing"


def test_the_check_forgets_lost_streams(step: TextStep) -> None:
    for key in (1, 2):
        chunk(step, tokens("a"), StreamState(key, False))
    assert unread(step, {2: 1}, lost_keys=(1, 77)) == []
    assert step.num_streams == 1


def test_a_state_that_somebody_else_wrote_is_refused(step: TextStep) -> None:
    tensors: dict[str, npt.NDArray[np.generic]] = {"TOKENS_BATCH": np.ones((1, 1, 1), dtype=np.int32)}
    tensors["STREAM_STATE"] = np.zeros((1, 3), dtype=np.uint8)
    with pytest.raises(RequestError, match="stream_state is for the ensemble's own use"):
        step.respond(tensors)


def test_it_is_made_from_a_release(tmp_path: Path) -> None:
    step = TextStep.from_release(write_release(tmp_path))
    assert chunk(step, tokens("hello")) == "hello"
    with pytest.raises(SpecError, match=r"cannot read .*release.json"):
        TextStep.from_release(tmp_path / "nowhere")


@pytest.mark.parametrize("lengths", [[[2, 2]], [[]], [[1], [1]]])
def test_lengths_that_do_not_fit_the_beams_are_refused(step: TextStep, lengths: list[list[int]]) -> None:
    tensors: dict[str, npt.NDArray[np.generic]] = {
        "TOKENS_BATCH": np.array([[[5, 6]]], np.int32),
        "SEQUENCE_LENGTH": np.array(lengths, np.int32),
    }
    with pytest.raises(RequestError, match=r"SEQUENCE_LENGTH has \d values for 1 beams"):
        step.respond(tensors)


def test_a_request_without_tokens_is_refused(step: TextStep) -> None:
    with pytest.raises(RequestError, match="TOKENS_BATCH is missing"):
        step.respond({"SEQUENCE_LENGTH": np.array([[1]], np.int32)})


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 1, 1, 1)])
def test_tokens_of_another_rank_are_refused(step: TextStep, shape: tuple[int, ...]) -> None:
    with pytest.raises(RequestError, match=r"TOKENS_BATCH has the shape .*; send \[batch, beams, tokens\]"):
        step.respond({"TOKENS_BATCH": np.ones(shape, np.int32)})


def test_more_tokens_than_a_text_has_are_refused_before_they_are_read() -> None:
    step = TextStep(TextDecoder.from_spec(SPEC), max_seq_len=100)
    with pytest.raises(RequestError, match="TOKENS_BATCH has 101 values; send at most 100"):
        step.respond({"TOKENS_BATCH": np.ones((1, 1, 101), dtype=np.int32)})
    assert step.respond({"TOKENS_BATCH": np.ones((1, 2, 100), dtype=np.int32)}).shape == (2,)
