# SPDX-License-Identifier: Apache-2.0
"""Logits of an OpenVINO model, as it is in its folder: plain inference, which its continuous batching does not give.

The tokens are read in pieces, so that the model reads all but the latest from the KV cache, quantized if it is. The
cache is the plain model's own, not the paged one; the effect of that on answers is measured on the answers.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import openvino
from numpy.typing import NDArray

from build_engines.evaluation.observations import log_softmax
from serving.engines.openvino.openvino_pipeline import last_line
from trireme.base.errors import SpecError

_PIECE = 16  # tokens


class IrScores:
    """The logits of one compiled model."""

    def __init__(self, folder: Path, properties: Mapping[str, object]) -> None:
        try:
            model = openvino.Core().compile_model(folder / "openvino_model.xml", "CPU", dict(properties))
        except RuntimeError as exc:
            raise SpecError(f"OpenVINO cannot load {folder}: {last_line(exc)}", file=folder) from exc
        self._names = {name for port in model.inputs for name in port.names}
        self._request = model.create_infer_request()

    def log_probs(self, token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return [num_tokens, vocab], the log probabilities of the token after each of `token_ids`."""
        self._request.reset_state()
        rows = [self._piece(token_ids, start) for start in range(0, len(token_ids), _PIECE)]
        return log_softmax(np.concatenate(rows))

    def _piece(self, token_ids: NDArray[np.int64], start: int) -> NDArray[np.float32]:
        ids = token_ids[None, start : start + _PIECE]
        end = start + ids.shape[1]
        inputs = {
            "input_ids": ids,
            "attention_mask": np.ones((1, end), dtype=np.int64),
            "position_ids": np.arange(start, end, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, dtype=np.int32),
        }
        outputs = self._request.infer({name: value for name, value in inputs.items() if name in self._names})
        return np.array(outputs["logits"][0], dtype=np.float32)  # a copy: the next call writes to the same place
