# SPDX-License-Identifier: Apache-2.0
"""Guided decoding for OpenVINO: the contract's guides in its words, each compiled once before it meets the pipeline.

A guide that does not compile raises in the pipeline's `step`, and from then on in every step of every request. So it is
compiled first in a small pipeline of its own, around a model without weights whose logits are all zero; that one
survives a failure. It compiles on the engine's thread, as the pipeline itself would: milliseconds for most guides.
"""

import functools
import tempfile
from pathlib import Path

import numpy as np
import openvino
import openvino.opset13 as ops
import openvino_genai

from serving.engines.openvino.openvino_json import without_white_space
from serving.engines.seam.base import EngineInfo, SamplingParams
from serving.engines.seam.request_limits import refuse_other_ends
from trireme.base.errors import RequestError

TOKENIZER_FILE = "openvino_tokenizer.xml"
GUIDE_FIELDS = frozenset({"guide_type", "guide"})
WITHOUT_TOKENIZER = f"guided decoding needs {TOKENIZER_FILE} in the model's folder; export it with the model"

_ANY_JSON = '{"anyOf": [{"type": "object"}, {"type": "array"}]}'
_ATTRIBUTES = {  # of StructuredOutputConfig, by the contract's guide types
    "json_schema": "json_schema",
    "regex": "regex",
    "ebnf_grammar": "grammar",
    "structural_tag": "structural_tags_config",
}
_NUM_REMEMBERED = 256
_MAX_REASON_CHARS = 300


class GuideCompiler:
    """A compiler from guides to what a GenerationConfig takes, for one model.

    Args:
        folder: with the tokenizer as OpenVINO reads it.
        vocab_size: of the model's logits.
    """

    def __init__(self, folder: Path, vocab_size: int) -> None:
        self._folder = folder
        self._vocab_size = vocab_size
        self._probe: object = None  # made with the first guide
        self.compile = functools.lru_cache(_NUM_REMEMBERED)(self._compile)

    def _compile(self, guide_type: str, guide: str | None) -> object:
        """Return a compiled StructuredOutputConfig.

        Raises:
            RequestError: the guide does not compile; the text says where.
        """
        config = openvino_genai.GenerationConfig(max_new_tokens=1)
        config.structured_output_config = _structured_output(guide_type, guide)
        if self._probe is None:
            self._probe = _probe_pipeline(self._folder, self._vocab_size)
        try:
            config.validate()
            self._probe.generate(openvino.Tensor(np.zeros((1, 1), dtype=np.int64)), config)  # type: ignore[attr-defined]
        except RuntimeError as exc:
            raise RequestError(
                f"the guide is no {guide_type} that compiles: {_reason(exc)}", field="guided_decoding_guide"
            ) from exc
        return config.structured_output_config


def refuse_unguidable(sampling: SamplingParams, info: EngineInfo) -> None:
    """Check what does not go together with a guide.

    Behind the end of its grammar OpenVINO generates freely, unless the model's own end token ends the request; and
    where that is held back by `min_tokens`, no token at all is left.

    Raises:
        RequestError: an `end_id`, `min_tokens`, or a model without an end token.
    """
    if sampling.guide_type is not None:
        refuse_other_ends(sampling, info)


def _structured_output(guide_type: str, guide: str | None) -> object:
    if guide_type == "json":
        return openvino_genai.StructuredOutputConfig(json_schema=_ANY_JSON)
    if guide is not None:
        guide_type, guide = without_white_space(guide_type, guide)
    return openvino_genai.StructuredOutputConfig(**{_ATTRIBUTES[guide_type]: guide})


def _probe_pipeline(folder: Path, vocab_size: int) -> object:
    tokenizer = openvino_genai.Tokenizer(folder)
    with tempfile.TemporaryDirectory() as model_folder:
        openvino.save_model(_zero_model(vocab_size), Path(model_folder) / "openvino_model.xml")
        return openvino_genai.LLMPipeline(model_folder, tokenizer, "CPU", ATTENTION_BACKEND="SDPA")


def _zero_model(vocab_size: int) -> openvino.Model:
    """Return a language model by its inputs and its output, with logits ``[batch, n, vocab] float32`` of zero."""
    shapes = {
        "input_ids": ([-1, -1], openvino.Type.i64),
        "attention_mask": ([-1, -1], openvino.Type.i64),
        "beam_idx": ([-1], openvino.Type.i32),
    }
    inputs = {name: ops.parameter(shape, dtype, name=name) for name, (shape, dtype) in shapes.items()}
    for name, parameter in inputs.items():
        parameter.output(0).tensor.set_names({name})
    first_row = ops.multiply(inputs["input_ids"], ops.constant(np.int64(0)))
    table = ops.constant(np.zeros((1, vocab_size), dtype=np.float32))
    logits = ops.gather(table, first_row, ops.constant(np.int64(0)))
    logits.output(0).tensor.set_names({"logits"})
    return openvino.Model([ops.result(logits)], list(inputs.values()), "zero")


def _reason(exc: Exception) -> str:
    """Return the sentence in the compiler's error, without the place in its own source before it."""
    last_line = str(exc).strip().splitlines()[-1]
    _, found, reason = last_line.partition(".cc:")
    text = reason.partition(": ")[2] if found else last_line
    return text if len(text) <= _MAX_REASON_CHARS else text[:_MAX_REASON_CHARS] + " ..."
