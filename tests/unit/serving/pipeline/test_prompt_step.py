# SPDX-License-Identifier: Apache-2.0
"""A prompt's text and its options become the tensors of the engine step; what is not supported is refused by name."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from simulated_release import TOKENIZER, write_release
from tokenizers import Tokenizer
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from ensemble_configs.render.tensors import PROMPT_TENSORS, Tensor, inputs_of
from ensemble_configs.spec.release_spec import TokenizerSpec
from serving.engines.seam.base import EngineInfo, SamplingParams
from serving.pipeline.prompt_step import PromptStep
from serving.requests.engine_request import RequestDecoder
from serving.requests.prompt_batch import engine_rows
from serving.requests.stream_state import unpack_context
from serving.text.tokenization import PromptTokenizer
from trireme.base.errors import RequestError, SpecError

PROMPTS = PromptTokenizer.from_spec(TokenizerSpec(dir=TOKENIZER, add_special_tokens=False))
ROWS: dict[str, Tensor] = dict(inputs_of("preprocessing"))
LISTS = {"STOP_WORDS_DICT", "BAD_WORDS_DICT", "EMBEDDING_BIAS_WORDS", "EMBEDDING_BIAS_WEIGHTS"}

INFO = EngineInfo(
    provider="toy",
    vocab_size=PROMPTS.vocab_size,
    max_seq_len=100,
    end_ids=(2,),
    kv_block_tokens=16,
    num_kv_blocks=64,
    max_num_seqs=8,
    max_num_batched_tokens=64,
    supported=frozenset(SamplingParams.__struct_fields__),
)

Arrays = dict[str, npt.NDArray[np.generic]]


@pytest.fixture(scope="module")
def step() -> PromptStep:
    return PromptStep(PROMPTS)


def prompt(*texts: bytes, **more: npt.NDArray[np.generic]) -> Arrays:
    return {
        "QUERY": np.array([[text] for text in texts or (b"hello there",)], dtype=np.object_),
        "REQUEST_OUTPUT_LEN": np.array([[7]], dtype=np.int32),
    } | more


def to_engine(outputs: Arrays) -> Arrays:
    names = {row.preprocessing: row.engine for row in PROMPT_TENSORS if row.engine}
    return {names[name]: array for name, array in outputs.items() if name in names}


def words(*strings: bytes) -> npt.NDArray[np.generic]:
    return np.array([list(strings)], dtype=np.object_)


def test_a_prompt_becomes_ids_and_their_number(step: PromptStep) -> None:
    outputs = step.prepare(prompt())
    expected = PROMPTS.encode("hello there")
    assert outputs["INPUT_ID"].tolist() == [expected.tolist()]
    assert outputs["INPUT_ID"].dtype == np.int32
    assert outputs["REQUEST_INPUT_LEN"].tolist() == [[len(expected)]]
    assert outputs["REQUEST_OUTPUT_LEN"].tolist() == [[7]]
    assert set(outputs) == {"INPUT_ID", "REQUEST_INPUT_LEN", "REQUEST_OUTPUT_LEN", "STREAM_CONTEXT"}


def test_every_prompt_is_a_stream_of_its_own(step: PromptStep) -> None:
    keys = {unpack_context(step.prepare(prompt())["STREAM_CONTEXT"].tobytes()).key for _ in range(10)}
    assert len(keys) == 10


def test_stop_words_go_on_as_text_and_in_upstreams_form_as_ids(step: PromptStep) -> None:
    outputs = step.respond(prompt(STOP_WORDS_DICT=words(b"one two", b"\n", b"")))
    assert unpack_context(outputs["STREAM_CONTEXT"].tobytes()).stop_strings == ("one two", "\n")
    first, second = (PROMPTS.encode(text).tolist() for text in ("one two", "\n"))
    flat, offsets = outputs["STOP_WORDS_IDS"][0].tolist()
    assert outputs["STOP_WORDS_IDS"].shape[:2] == (1, 2)
    assert outputs["STOP_WORDS_IDS"].dtype == np.int32
    assert flat == first + second
    assert offsets == [len(first), len(first) + len(second), *[-1] * (len(flat) - 2)]


def test_more_stop_words_than_ids_are_padded_the_other_way() -> None:
    outputs = PromptStep(word_tokenizer()).respond(prompt(b"a b", STOP_WORDS_DICT=words(b"a", b"\n", b"b", b"\t")))
    # A string that this tokenizer has no ids for is matched on text all the same, and has no place among the ids.
    assert unpack_context(outputs["STREAM_CONTEXT"].tobytes()).stop_strings == ("a", "\n", "b", "\t")
    assert outputs["STOP_WORDS_IDS"].tolist() == [[[1, 2], [1, 2]]]
    only_space = PromptStep(word_tokenizer()).respond(prompt(b"a b", STOP_WORDS_DICT=words(b"\n")))
    assert only_space["STOP_WORDS_IDS"].size == 0


def word_tokenizer() -> PromptTokenizer:
    """Return a tokenizer without ids for white space."""
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PromptTokenizer(tokenizer, add_special_tokens=False)


def test_empty_stop_words_ask_for_nothing(step: PromptStep) -> None:
    outputs = step.respond(prompt(STOP_WORDS_DICT=words(b"")))
    assert outputs["STOP_WORDS_IDS"].size == 0
    assert unpack_context(outputs["STREAM_CONTEXT"].tobytes()).stop_strings == ()


def test_an_ensemble_does_not_wait_for_ids_of_stop_words_that_it_matches_as_text(step: PromptStep) -> None:
    outputs = step.prepare(prompt(STOP_WORDS_DICT=words(b"one two")))
    assert unpack_context(outputs["STREAM_CONTEXT"].tobytes()).stop_strings == ("one two",)
    assert "STOP_WORDS_IDS" not in outputs


def weights(*values: float) -> npt.NDArray[np.generic]:
    return np.array([values], dtype=np.float32)


def test_bad_words_go_on_in_upstreams_form(step: PromptStep) -> None:
    outputs = step.prepare(prompt(BAD_WORDS_DICT=words(b" red ball", b"", b"x")))
    long, short = (PROMPTS.encode(text).tolist() for text in (" red ball", "x"))
    ends = [len(long), len(long) + len(short)]
    assert outputs["BAD_WORDS_IDS"].tolist() == [[long + short, ends + [-1] * (len(long) + len(short) - 2)]]
    assert outputs["BAD_WORDS_IDS"].dtype == np.int32
    assert "BAD_WORDS_IDS" not in step.prepare(prompt(BAD_WORDS_DICT=words(b"")))


def test_every_token_of_a_biased_word_has_its_weight_and_weights_add_up(step: PromptStep) -> None:
    outputs = step.prepare(
        prompt(EMBEDDING_BIAS_WORDS=words(b" red ball", b"", b" ball"), EMBEDDING_BIAS_WEIGHTS=weights(1.5, 9.0, -0.25))
    )
    expected = np.zeros(PROMPTS.vocab_size, dtype=np.float32)
    for token_id in PROMPTS.encode(" red ball"):
        expected[token_id] += 1.5
    for token_id in PROMPTS.encode(" ball"):
        expected[token_id] -= 0.25
    assert len(set(expected.tolist())) > 2
    assert outputs["EMBEDDING_BIAS"].dtype == np.float32
    assert outputs["EMBEDDING_BIAS"].tolist() == [expected.tolist()]


def test_no_biased_word_asks_for_nothing(step: PromptStep) -> None:
    for nothing in ({"EMBEDDING_BIAS_WORDS": words(b"")}, {"EMBEDDING_BIAS_WEIGHTS": np.zeros((1, 0))}):
        assert "EMBEDDING_BIAS" not in step.prepare(prompt(**nothing))


class Walked:
    """A tokenizer that counts the walks through its whole vocabulary, which take milliseconds each."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.num_walks = 0

    def __getattr__(self, name: str) -> object:
        self.num_walks += name.startswith("get_")
        return getattr(self._tokenizer, name)


@pytest.mark.parametrize("more", [{}, {"EMBEDDING_BIAS_WORDS": words(b"a"), "EMBEDDING_BIAS_WEIGHTS": weights(1.0)}])
def test_a_prompt_does_not_walk_through_the_vocabulary(more: Arrays) -> None:
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    walked = Walked(tokenizer)
    step = PromptStep(PromptTokenizer(walked, add_special_tokens=False, max_seq_len=100))
    before = walked.num_walks
    step.respond(prompt(b"a b", **more))
    assert walked.num_walks == before > 0


def test_end_and_pad_ids_pass_through_if_they_are_sent(step: PromptStep) -> None:
    given = np.array([[5]], dtype=np.int32)
    assert step.prepare(prompt(END_ID=given))["OUT_END_ID"].tolist() == [[5]]
    assert step.prepare(prompt(PAD_ID=given))["OUT_PAD_ID"].tolist() == [[5]]


def test_callers_of_the_step_by_itself_find_each_output_that_upstream_always_has(step: PromptStep) -> None:
    read = ("BAD_WORDS_IDS", "STOP_WORDS_IDS", "OUT_END_ID", "OUT_PAD_ID", "DECODER_INPUT_ID")
    outputs = step.respond(prompt())
    assert [outputs[name].shape for name in read] == [(1, 2, 0), (1, 2, 0), (1, 1), (1, 1), (1, 1)]
    # A tokenizer without an end token, of which upstream's clients would find no OUT_END_ID: -1 is none.
    outputs = PromptStep(word_tokenizer()).respond(prompt(b"a b"))
    assert [outputs[name].shape for name in read] == [(1, 2, 0), (1, 2, 0), (1, 1), (1, 1), (1, 1)]
    assert outputs["OUT_END_ID"].tolist() == [[-1]]
    sent = PromptStep(word_tokenizer()).respond(prompt(b"a b", END_ID=np.array([[1]], dtype=np.int32)))
    assert sent["OUT_END_ID"].tolist() == [[1]]


def test_the_decoders_text_becomes_its_ids_as_it_stands_and_their_number(step: PromptStep) -> None:
    outputs = step.prepare(prompt(DECODER_QUERY=words(b"hello there")))
    ids = PROMPTS.encode("hello there", add_special_tokens=False).tolist()
    assert outputs["DECODER_INPUT_ID"].tolist() == [ids]
    assert outputs["REQUEST_DECODER_INPUT_LEN"].tolist() == [[len(ids)]]


def test_an_extra_id_is_that_of_every_token_of_the_prompt(step: PromptStep) -> None:
    outputs = step.prepare(prompt(PROMPT_TABLE_EXTRA_ID=np.array([[2**63]], dtype=np.uint64)))
    assert outputs["OUT_PROMPT_TABLE_EXTRA_IDS"].tolist() == [[2**63] * outputs["INPUT_ID"].shape[1]]


@pytest.mark.parametrize("name", ["BAD_WORDS_DICT", "STOP_WORDS_DICT", "DECODER_QUERY"])
def test_empty_text_asks_for_nothing_as_upstreams_own_examples_send_it(step: PromptStep, name: str) -> None:
    # The README of tensorrtllm_backend: {"text_input": ..., "max_tokens": 20, "bad_words": "", "stop_words": ""}
    assert set(step.prepare(prompt(**{name: words(b"")}))) == set(step.prepare(prompt()))


def test_a_bad_word_that_has_no_token_cannot_be_kept_out_and_is_refused() -> None:
    with pytest.raises(RequestError, match="for which the tokenizer has no token"):
        PromptStep(word_tokenizer()).prepare(prompt(b"a b", BAD_WORDS_DICT=words(b"\n")))


# Of three prompts: a bad and stop word, and the weight of a bias. With the bias comes a decoder's text.
WORDS_AND_BIAS = [(b"", 0.0), (b" red ball", 2.0), (b"x", 0.0)]


def batch(step: PromptStep) -> tuple[Arrays, list[Arrays]]:
    """Return the outputs for three prompts in one request, and for each alone."""
    rows = [
        prompt(
            text,
            STOP_WORDS_DICT=words(word, b""),
            BAD_WORDS_DICT=words(word),
            EMBEDDING_BIAS_WORDS=words(b" red" if bias else b""),
            EMBEDDING_BIAS_WEIGHTS=weights(bias),
            DECODER_QUERY=words(b"Born" if bias else b""),
            PROMPT_TABLE_EXTRA_ID=np.array([[9]], dtype=np.uint64),
            PAD_ID=np.array([[77]], dtype=np.int32),
        )
        for text, (word, bias) in zip((b"hello there", b"a", b"one two three four five"), WORDS_AND_BIAS, strict=True)
    ]
    together = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    return step.prepare(together), [step.prepare(row) for row in rows]


def test_a_batch_is_padded_to_its_longest_prompt_with_the_pad_id_that_was_sent(step: PromptStep) -> None:
    outputs, alone = batch(step)
    lengths = outputs["REQUEST_INPUT_LEN"][:, 0].tolist()
    assert lengths == [one["INPUT_ID"].shape[1] for one in alone]
    assert len(set(lengths)) == 3
    for ids, length, one in zip(outputs["INPUT_ID"].tolist(), lengths, alone, strict=True):
        assert ids == one["INPUT_ID"][0].tolist() + [77] * (max(lengths) - length)


def test_a_batch_is_padded_with_the_tokenizers_own_id_where_none_was_sent(step: PromptStep) -> None:
    together = prompt(b"one two three", b"a") | {"REQUEST_OUTPUT_LEN": np.array([[7], [7]], dtype=np.int32)}
    assert step.prepare(together)["INPUT_ID"][1, -1] == (PROMPTS.end_id if PROMPTS.pad_id is None else PROMPTS.pad_id)
    unknown = word_tokenizer()  # has neither
    assert PromptStep(unknown).prepare(together)["INPUT_ID"].tolist()[1][1:] == [0, 0]


def test_the_engine_step_finds_in_each_row_of_a_batch_what_the_prompt_has_alone(step: PromptStep) -> None:
    outputs, alone = batch(step)
    decoder = RequestDecoder(INFO)
    assert all(array.shape[0] == 3 for array in outputs.values())
    for row, one in zip(engine_rows(to_engine(outputs)), alone, strict=True):
        got, expected = (decoder.decode(tensors) for tensors in (row, to_engine(one)))
        assert got.sampling == expected.sampling
        contexts = [unpack_context(request.options.stream_context or b"") for request in (got, expected)]
        assert contexts[0].stop_strings == contexts[1].stop_strings
        assert got.options.input_ids == expected.options.input_ids
    keys = {unpack_context(packed.tobytes()).key for packed in outputs["STREAM_CONTEXT"]}
    assert len(keys) == 3


def test_a_prompt_of_a_batch_that_is_wrong_is_named_by_its_row(step: PromptStep) -> None:
    together = prompt(b"a", b"b", b"") | {"REQUEST_OUTPUT_LEN": np.array([[7]] * 3, dtype=np.int32)}
    with pytest.raises(RequestError, match=r"^\[INVALID_ARG field=text_input batch_index=2\] text_input is empty"):
        step.prepare(together)


@pytest.mark.parametrize(
    ("tensors", "finding"),
    [
        pytest.param(prompt(b""), "text_input is empty", id="empty"),
        pytest.param(prompt(b"\xff"), "text_input is not UTF-8 at byte 0", id="not UTF-8"),
        pytest.param(prompt(STOP_WORDS_DICT=words(b"\xff")), r"stop_words\[0\] is not UTF-8", id="stop word"),
        pytest.param(
            prompt(STOP_WORDS_DICT=words(*(b"%d" % i for i in range(4097)))),
            "4097 strings; send at most 4096",
            id="too many",
        ),
        pytest.param(prompt(BAD_WORDS_DICT=words(b"x", b"\xff")), r"bad_words\[1\] is not UTF-8", id="bad word"),
        pytest.param(
            prompt(BAD_WORDS_DICT=words(*[b"x"] * 4097)), "4097 words; send at most 4096", id="too many bad words"
        ),
        pytest.param(
            prompt(EMBEDDING_BIAS_WORDS=words(b"\xff"), EMBEDDING_BIAS_WEIGHTS=weights(1)),
            r"embedding_bias_words\[0\] is not UTF-8",
            id="biased word",
        ),
        pytest.param(
            prompt(EMBEDDING_BIAS_WORDS=words(b"a", b"b"), EMBEDDING_BIAS_WEIGHTS=weights(1)),
            "embedding_bias_words has 2 words and embedding_bias_weights has 1",
            id="a weight is missing",
        ),
        pytest.param(prompt(EMBEDDING_BIAS_WORDS=words(b"a")), "embedding_bias_weights has 0", id="no weights"),
        pytest.param(prompt(EMBEDDING_BIAS_WEIGHTS=weights(1)), "embedding_bias_words has 0", id="no words"),
        pytest.param(
            prompt(EMBEDDING_BIAS_WORDS=words(b"a"), EMBEDDING_BIAS_WEIGHTS=weights(np.inf)),
            "embedding_bias_weights must be finite",
            id="infinite weight",
        ),
        pytest.param(prompt(STOP_WORDS_DICT=words(b"x" * 1001)), "has 1001 characters", id="too long"),
    ],
)
def test_bad_text_is_refused(step: PromptStep, tensors: Arrays, finding: str) -> None:
    with pytest.raises(RequestError, match=finding):
        step.prepare(tensors)


def test_it_is_made_from_a_release(tmp_path: Path) -> None:
    release = write_release(tmp_path)
    assert PromptStep.from_release(release).prepare(prompt())["INPUT_ID"].size > 0
    with pytest.raises(SpecError, match=r"cannot read .*release.json"):
        PromptStep.from_release(tmp_path / "nowhere")


def test_warmed_up_it_has_prepared_a_prompt_of_nobodys(step: PromptStep) -> None:
    tensors = step.warm_up()
    assert tensors is not None
    assert tensors["INPUT_ID"].size == tensors["REQUEST_INPUT_LEN"].item() > 1


def test_a_tokenizer_that_knows_no_word_of_it_stays_cold() -> None:
    assert PromptStep(PromptTokenizer(Tokenizer(BPE()), add_special_tokens=False)).warm_up() is None


def test_a_tokenizer_that_breaks_with_some_words_breaks_no_start(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = Tokenizer(WordLevel({"nothing": 0}))  # without a token for words that it does not know
    tokenizer.pre_tokenizer = WhitespaceSplit()
    assert PromptStep(PromptTokenizer(tokenizer, add_special_tokens=False)).warm_up() is None
    assert "Missing [UNK] token" in caplog.text


@pytest.mark.parametrize("is_warmed_up", [True, False])
def test_a_release_is_warmed_up_unless_its_deployment_says_no(
    is_warmed_up: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_release(tmp_path, is_warmed_up=is_warmed_up)
    calls: list[PromptStep] = []

    def note(step: PromptStep) -> None:
        calls.append(step)

    monkeypatch.setattr(PromptStep, "warm_up", note)
    PromptStep.from_release(folder)
    assert len(calls) == is_warmed_up
