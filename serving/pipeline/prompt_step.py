# SPDX-License-Identifier: Apache-2.0
"""The first step of the ensemble, without Triton: it turns prompts in text into the tensors of the engine step."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ensemble_configs.render.release_file import load_release
from ensemble_configs.spec.release_spec import TokenizerSpec
from serving.process.stub_warm_up import import_for_first_request
from serving.requests.embedding_bias import dense_bias
from serving.requests.prompt_batch import Row, for_each_row, joined, rows_of
from serving.requests.required_tensors import check_required
from serving.requests.stream_state import StreamContext, new_stream_key, pack
from serving.requests.word_lists import Ids, bad_words_of, pack_words, texts_of
from serving.text.chat_prompt import ChatPrompt
from serving.text.stop_strings import check_stop_strings
from serving.text.tokenization import PromptTokenizer
from trireme.base.errors import RequestError

_log = logging.getLogger("trireme.prompt_step")

_NO_END_ID = -1
_WARM_UP_TEXT = b"What is the capital of France?"
_WARM_UP_MESSAGES = b'[{"role": "user", "content": "What is the capital of France?"}]'
_WARM_UP_LENGTH: dict[str, npt.NDArray[np.generic]] = {"REQUEST_OUTPUT_LEN": np.array([[1]], dtype=np.int32)}


class PromptStep:
    """The prompt step of one release: tokenizer and chat template; its only state is the names of streams."""

    def __init__(self, tokenizer: PromptTokenizer, chat: ChatPrompt | None = None) -> None:
        """Set the parts of the step.

        Args:
            tokenizer: tokenizer of the release.
            chat: chat template of the release; None: messages are refused.
        """
        self._tokenizer = tokenizer
        self._chat = chat or ChatPrompt(None, tokenizer)

    @classmethod
    def from_release(cls, folder: Path) -> "PromptStep":
        """Load the tokenizer of a release, and warm up where the deployment asks for it.

        Args:
            folder: version folder of the model, with the release file.

        Raises:
            SpecError: there is no such release, or no usable tokenizer in it.
        """
        release = load_release(folder)
        step = cls.from_spec(release.tokenizer, max_seq_len=release.engine.max_seq_len)
        if release.is_warmed_up:
            import_for_first_request()
            step.warm_up()
        return step

    @classmethod
    def from_spec(cls, spec: TokenizerSpec, *, max_seq_len: int | None = None) -> "PromptStep":
        """Load the tokenizer and the chat template of a release.

        Args:
            spec: the tokenizer.
            max_seq_len: tokens that a sequence of the engine may have; None: text of any length is tokenized.

        Raises:
            SpecError: the tokenizer cannot be used. A template that cannot be used fails only the requests that need
                it.
        """
        tokenizer = PromptTokenizer.from_spec(spec, max_seq_len=max_seq_len)
        return cls(tokenizer, ChatPrompt.from_folder(spec.dir, tokenizer))

    def warm_up(self) -> dict[str, npt.NDArray[np.generic]] | None:
        """Prepare a prompt that no client sent, so that a client's first prompt takes no longer than later ones.

        Returns:
            The prompt's tensors; None: this tokenizer makes no token of the prompt.
        """
        self._try("MESSAGES", _WARM_UP_MESSAGES)
        return self._try("QUERY", _WARM_UP_TEXT)

    def _try(self, name: str, content: bytes) -> dict[str, npt.NDArray[np.generic]] | None:
        tensors: Row = {name: np.array([[content]], dtype=np.object_), **_WARM_UP_LENGTH}
        try:
            return self.prepare(tensors)
        except RequestError:  # there is no template, or the tokenizer makes no token of it
            return None
        except Exception:  # what only some requests meet must not keep the others from being served
            _log.exception("the step could not be warmed up; requests like this one will fail, too: %r", content)
            return None

    def prepare(self, tensors: Row, *, traceparent: str = "") -> dict[str, npt.NDArray[np.generic]]:
        """Return the output tensors of one request by name; ids are ``[batch, n] int32``, padded at the end.

        Args:
            tensors: tensors by the names of `preprocessing`'s inputs.
            traceparent: the trace that the engine step is to go on with.

        Raises:
            RequestError: an input is missing, a prompt is empty, text is not UTF-8, messages are not what the release's
                chat template takes, a stop string or bias is bad, or text is more than the engine takes.
        """
        check_required("preprocessing", tensors)
        rows = rows_of(tensors)
        outputs = for_each_row(lambda row: self._prepare_one(row, traceparent), rows)
        return outputs[0] if len(outputs) == 1 else joined(outputs, pad_ids=[self._pad_id(row) for row in rows])

    def respond(self, tensors: Row, *, traceparent: str = "") -> dict[str, npt.NDArray[np.generic]]:
        """Return `prepare`'s tensors, with the tensors that upstream's step always has.

        Callers of the steps by themselves read them without looking and send them on: the end and padding id (the
        tokenizer's, where the request names none, and -1 for no end token, where that has none either), lists of no
        words, and a padding token of length 0 for a decoder without a prompt.

        Raises:
            RequestError: `prepare` refuses the request.
        """
        outputs = self.prepare(tensors, traceparent=traceparent)
        rows = rows_of(tensors)
        stop_ids = [self._stop_ids(row) for row in rows]
        if any(stop_ids):
            outputs |= joined(stop_ids, pad_ids=())
        pad_ids = np.array([[self._pad_id(row)] for row in rows], dtype=np.int32)
        no_words = np.empty((len(rows), 2, 0), dtype=np.int32)
        fillers: dict[str, npt.NDArray[np.generic]] = {
            "OUT_PAD_ID": pad_ids,
            "OUT_END_ID": np.full_like(
                pad_ids, _NO_END_ID if self._tokenizer.end_id is None else self._tokenizer.end_id
            ),
            "BAD_WORDS_IDS": no_words,
            "STOP_WORDS_IDS": no_words,
        }
        if "DECODER_INPUT_ID" not in outputs:
            fillers["DECODER_INPUT_ID"] = pad_ids
            fillers["REQUEST_DECODER_INPUT_LEN"] = np.zeros_like(pad_ids)
        return fillers | outputs

    def _prepare_one(self, tensors: Row, traceparent: str) -> dict[str, npt.NDArray[np.generic]]:
        input_ids = self._input_ids(tensors)
        strings = _stop_strings(tensors)
        outputs = {
            "INPUT_ID": input_ids[np.newaxis],
            "REQUEST_INPUT_LEN": np.array([[len(input_ids)]], dtype=np.int32),
            "REQUEST_OUTPUT_LEN": tensors["REQUEST_OUTPUT_LEN"],
            "STREAM_CONTEXT": pack(StreamContext(new_stream_key(), strings, traceparent)),
        }
        bad_ids = bad_words_of(_items(tensors, "BAD_WORDS_DICT"), self._tokenizer)
        if bad_ids:
            outputs["BAD_WORDS_IDS"] = pack_words(bad_ids)
        bias = dense_bias(
            _items(tensors, "EMBEDDING_BIAS_WORDS"), _items(tensors, "EMBEDDING_BIAS_WEIGHTS"), self._tokenizer
        )
        if bias is not None:
            outputs["EMBEDDING_BIAS"] = bias
        outputs |= self._model_inputs(tensors, input_ids)
        for name, given in (("OUT_END_ID", "END_ID"), ("OUT_PAD_ID", "PAD_ID")):
            if given in tensors:
                outputs[name] = tensors[given]
        return outputs

    def _stop_ids(self, tensors: Row) -> Row:
        """Return upstream's form of the stop words; the ensembles pass stop strings on as text instead.

        A word without ids (white space, in some vocabularies) is matched as text alone.
        """
        words = [ids for ids in self._tokenizer.encode_words(_stop_strings(tensors)) if ids.size]
        return {"STOP_WORDS_IDS": pack_words(words)} if words else {}

    def _input_ids(self, tensors: Row) -> Ids:
        """Return the token ids ``[num_tokens] int32`` of the text or of the messages."""
        tools = _items(tensors, "TOOLS")
        if "MESSAGES" not in tensors:
            if any(tools):
                raise RequestError("tools are for messages; send these, or leave tools out", field="tools")
            return self._tokenizer.encode_bytes(tensors["QUERY"].item())
        if "QUERY" in tensors and tensors["QUERY"].item():
            raise RequestError("text_input and messages are both there; send one of them", field="messages")
        return self._chat.encode(tensors["MESSAGES"].item(), tools[0] if tools else b"")

    def _pad_id(self, tensors: Row) -> int:
        given = (*_items(tensors, "PAD_ID"), self._tokenizer.pad_id, self._tokenizer.end_id)
        return next((int(token_id) for token_id in given if token_id is not None), 0)

    def _model_inputs(self, tensors: Row, input_ids: Ids) -> dict[str, npt.NDArray[np.generic]]:
        """Return the decoder's prompt, and the id that tells this prompt's tokens from equal tokens in the KV cache."""
        outputs: dict[str, npt.NDArray[np.generic]] = {}
        field = "decoder_text_input"
        given = _items(tensors, "DECODER_QUERY")
        self._tokenizer.check_bytes(sum(map(len, given)), field)
        decoder_text = "".join(texts_of(given, field))
        if decoder_text:  # empty text asks for nothing: upstream's own examples send it
            decoder_ids = np.array(self._tokenizer.encode_piece(decoder_text, field=field), dtype=np.int32)
            outputs["DECODER_INPUT_ID"] = decoder_ids[np.newaxis]
            outputs["REQUEST_DECODER_INPUT_LEN"] = np.array([[len(decoder_ids)]], dtype=np.int32)
        if "PROMPT_TABLE_EXTRA_ID" in tensors:
            extra_id = _items(tensors, "PROMPT_TABLE_EXTRA_ID")[0]
            outputs["OUT_PROMPT_TABLE_EXTRA_IDS"] = np.full((1, len(input_ids)), extra_id, dtype=np.uint64)
        return outputs


def _stop_strings(tensors: Row) -> tuple[str, ...]:
    stop_words = tensors.get("STOP_WORDS_DICT")
    return () if stop_words is None else check_stop_strings(stop_words[0])


def _items(tensors: Row, name: str) -> list[Any]:
    """Return the values of a tensor ``[1, n]``; an empty list for a tensor that was not sent."""
    return tensors[name].reshape(-1).tolist() if name in tensors else []
