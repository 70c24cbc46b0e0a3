# SPDX-License-Identifier: Apache-2.0
"""The first step of the ensemble, without Triton: a prompt's text to the tensors that the engine step takes."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ensemble_configs.errors import RequestError
from ensemble_configs.release import load_release
from ensemble_configs.tensors import inputs_of
from serving.required_tensors import check_required
from serving.stop_strings import check_stop_strings
from serving.stream_state import StreamContext, new_stream_key, pack
from serving.tokenization import PromptTokenizer

# Contract inputs that this step passes on or uses; every other one is refused by the name the client knows, unless it
# is empty text: upstream's own examples send `"bad_words": ""`.
_SUPPORTED = frozenset({"QUERY", "REQUEST_OUTPUT_LEN", "STOP_WORDS_DICT", "END_ID", "PAD_ID"})
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
            RequestError: an input is missing or unsupported, the prompt is empty, text is not UTF-8, a stop string
                is bad, there is a batch.
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
        words = [word for word in map(self._ids_of_stop_word, strings) if word.size]
        if words:
            outputs["STOP_WORDS_IDS"] = _in_upstreams_form(words)
        for name, given in (("OUT_END_ID", "END_ID"), ("OUT_PAD_ID", "PAD_ID")):
            if given in tensors:
                outputs[name] = tensors[given]
        return outputs

    def _ids_of_stop_word(self, string: str) -> npt.NDArray[np.int32]:
        try:
            return self._tokenizer.encode(string, add_special_tokens=False)
        except RequestError:  # white space has no ids in some vocabularies; as text it is matched all the same
            return np.empty(0, dtype=np.int32)


def _is_empty_text(array: npt.NDArray[np.generic]) -> bool:
    return array.dtype == np.object_ and not any(array.flat)


def _in_upstreams_form(words: list[npt.NDArray[np.int32]]) -> npt.NDArray[np.int32]:
    """Words of ids as ``[1, 2, n]``: flat ids padded with 0; cumulative offsets padded with -1."""
    ids = np.concatenate(words)
    flat = np.zeros((1, 2, len(ids)), dtype=np.int32)
    flat[0, 0] = ids
    flat[0, 1] = -1
    flat[0, 1, : len(words)] = np.cumsum([len(word) for word in words])
    return flat
