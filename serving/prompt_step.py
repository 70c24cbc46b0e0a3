# SPDX-License-Identifier: Apache-2.0
"""The first step of the ensemble, without Triton: a prompt's text to the tensors that the engine step takes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ensemble_configs.errors import RequestError
from ensemble_configs.release import load_release
from ensemble_configs.tensors import inputs_of
from serving.embedding_bias import dense_bias
from serving.required_tensors import check_required
from serving.stop_strings import check_stop_strings
from serving.stream_state import StreamContext, new_stream_key, pack
from serving.tokenization import PromptTokenizer
from serving.word_lists import bad_words_of, ids_of, pack_words

# Contract inputs that this step passes on or uses; every other one is refused by the name the client knows, unless it
# is empty text: upstream's own examples send `"bad_words": ""`.
_SUPPORTED = frozenset(
    {
        "QUERY",
        "REQUEST_OUTPUT_LEN",
        "STOP_WORDS_DICT",
        "BAD_WORDS_DICT",
        "EMBEDDING_BIAS_WORDS",
        "EMBEDDING_BIAS_WEIGHTS",
        "END_ID",
        "PAD_ID",
    }
)
_CLIENT_NAMES = {name: row.ensemble for name, row in inputs_of("preprocessing")}


class PromptStep:
    """Tokenizes prompts of one release; stateless but for the names it gives to streams."""

    def __init__(self, tokenizer: PromptTokenizer) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def from_release(cls, folder: Path) -> "PromptStep":
        """Raises: SpecError: no such release, or no usable tokenizer in it."""
        return cls(PromptTokenizer.from_spec(load_release(folder).tokenizer))

    def prepare(self, tensors: Mapping[str, npt.NDArray[np.generic]]) -> dict[str, npt.NDArray[np.generic]]:
        """The output tensors of one request, by name; ids are ``[1, n] int32``.

        Raises:
            RequestError: an input is missing or unsupported, the prompt is empty, text is not UTF-8, a stop string or
                bias is bad, there is a batch.
        """
        check_required("preprocessing", tensors)
        for name, array in tensors.items():
            if name not in _SUPPORTED and not _is_empty_text(array):
                field = _CLIENT_NAMES[name]
                raise RequestError(f"{field} is not supported; leave it out", field=field)
        batch = tensors["QUERY"].shape[0]
        if batch != 1:
            raise RequestError(
                f"text_input has a batch of {batch}; send one prompt in a request, they are batched in flight",
                field="text_input",
                value=batch,
            )
        input_ids = self._tokenizer.encode_bytes(tensors["QUERY"].item())
        stop_words = tensors.get("STOP_WORDS_DICT")
        strings = () if stop_words is None else check_stop_strings(stop_words[0])
        outputs = {
            "INPUT_ID": input_ids[np.newaxis],
            "REQUEST_INPUT_LEN": np.array([[len(input_ids)]], dtype=np.int32),
            "REQUEST_OUTPUT_LEN": tensors["REQUEST_OUTPUT_LEN"],
            "STREAM_CONTEXT": pack(StreamContext(new_stream_key(), strings)),
        }
        # One without ids (white space, in some vocabularies) is matched as text all the same.
        stop_ids = [ids for ids in (ids_of(string, self._tokenizer) for string in strings) if ids.size]
        if stop_ids:
            outputs["STOP_WORDS_IDS"] = pack_words(stop_ids)
        bad_ids = bad_words_of(_items(tensors, "BAD_WORDS_DICT"), self._tokenizer)
        if bad_ids:
            outputs["BAD_WORDS_IDS"] = pack_words(bad_ids)
        bias = dense_bias(
            _items(tensors, "EMBEDDING_BIAS_WORDS"), _items(tensors, "EMBEDDING_BIAS_WEIGHTS"), self._tokenizer
        )
        if bias is not None:
            outputs["EMBEDDING_BIAS"] = bias
        for name, given in (("OUT_END_ID", "END_ID"), ("OUT_PAD_ID", "PAD_ID")):
            if given in tensors:
                outputs[name] = tensors[given]
        return outputs


def _items(tensors: Mapping[str, npt.NDArray[np.generic]], name: str) -> list[Any]:
    """The values of a tensor ``[1, n]``; none of one that was not sent."""
    return tensors[name].reshape(-1).tolist() if name in tensors else []


def _is_empty_text(array: npt.NDArray[np.generic]) -> bool:
    return array.dtype == np.object_ and not any(array.flat)
