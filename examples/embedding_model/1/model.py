# SPDX-License-Identifier: Apache-2.0
"""A small embedding model for Triton: the demo model's hidden states, averaged over a text's tokens, of length 1.

One Python file, for it is an example of a model of the user's own beside the language models of a deployment
(`extra_models`). It works in `execute()`, so Triton's rate limiter binds it.
"""

from pathlib import Path

import numpy as np
import openvino
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray
from tokenizers import Tokenizer

DEMO_MODEL = Path(__file__).resolve().parent.parent.parent / "demo_model"
MAX_TOKENS = 512  # of a text; what is behind is left out


class Embedder:
    """A model from texts to vectors, on one core."""

    def __init__(self, folder: Path) -> None:
        """Load a model.

        Args:
            folder: with the model as OpenVINO IR and its tokenizer, as in `examples/demo_model`.
        """
        core = openvino.Core()
        model = core.read_model(folder / "openvino/target/openvino_model.xml")
        # Cut before the language-model head: what goes into the last product is the hidden state of each token.
        head = model.output("logits").get_node().input_value(0).get_node()
        hidden = openvino.opset8.result(head.input_value(0))
        for result in model.get_results():
            model.remove_result(result)
        model.add_results([hidden])
        settings = {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY"}
        self._request = core.compile_model(model, "CPU", settings).create_infer_request()
        self._tokenizer = Tokenizer.from_file(str(folder / "target/tokenizer.json"))
        self._tokenizer.enable_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)

    def embed(self, texts: list[str]) -> NDArray[np.float32]:
        """Return vectors, ``[num_texts, width] float32``, each of length 1, whatever else is in the batch."""
        encoded = self._tokenizer.encode_batch(texts)
        input_ids = np.array([text.ids for text in encoded], np.int64)  # [num_texts, num_tokens]
        mask = np.array([text.attention_mask for text in encoded], np.int64)
        self._request.reset_state()  # its KV cache: nothing is continued
        # Padding is behind a text and attention looks back, so it changes nothing.
        self._request.infer(
            {
                "input_ids": input_ids,
                "attention_mask": mask,
                "position_ids": np.broadcast_to(np.arange(input_ids.shape[1]), input_ids.shape),
                "beam_idx": np.arange(len(texts), dtype=np.int32),
            }
        )
        hidden = self._request.get_output_tensor(0).data  # [num_texts, num_tokens, width]
        mean = (hidden * mask[:, :, np.newaxis]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        return np.asarray(mean / np.linalg.norm(mean, axis=1, keepdims=True), np.float32)


class TritonPythonModel:
    """The adapter of the embedding model; requests that Triton has put together are one batch."""

    def initialize(self, args: dict[str, str]) -> None:  # noqa: ARG002
        """Load the model."""
        self.embedder = Embedder(DEMO_MODEL)

    def execute(self, requests: list) -> list:
        """Return a response for each request, with a vector for each of its texts."""
        inputs = [request.inputs()[0].as_numpy() for request in requests]  # `text`: [num_texts, 1]
        vectors = self.embedder.embed([text.decode(errors="replace") for texts in inputs for text in texts[:, 0]])
        ends = np.cumsum([len(texts) for texts in inputs])
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("embedding", part)]) for part in np.split(vectors, ends[:-1])
        ]
