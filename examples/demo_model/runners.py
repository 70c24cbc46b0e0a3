# SPDX-License-Identifier: Apache-2.0
"""Runners of a demo model behind one interface: the checkpoint in torch, and the int8 IR in OpenVINO GenAI."""

from pathlib import Path
from typing import Protocol

import numpy as np
import openvino as ov
import openvino_genai
import torch
from numpy.typing import NDArray
from transformers import LlamaForCausalLM

BATCH_SIZE = 64


class Runner(Protocol):
    """A greedy model: token ids in, token ids or scores out."""

    name: str

    def generate(self, prompts: list[list[int]], *, max_tokens: int) -> list[list[int]]:
        """Return greedy continuations, without the `<|eos|>` that ends them."""

    def logits(self, ids: list[int]) -> NDArray[np.float32]:
        """Return scores of the token after each of `ids`, [num_tokens, vocab]."""


class TorchRunner:
    """The bf16 checkpoint, computed in float32."""

    def __init__(self, directory: Path) -> None:
        self.name = "bf16 checkpoint"
        self._model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self._eos: int = self._model.config.eos_token_id
        self._pad: int = self._model.config.pad_token_id

    def generate(self, prompts: list[list[int]], *, max_tokens: int) -> list[list[int]]:
        """Return greedy continuations, in batches of equally long prompts, so that nothing needs left padding."""
        outputs: list[list[int]] = [[] for _ in prompts]
        by_length = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        while by_length:
            length = len(prompts[by_length[0]])
            chosen = [index for index in by_length[:BATCH_SIZE] if len(prompts[index]) == length]
            by_length = by_length[len(chosen) :]
            with torch.no_grad():
                ids = self._model.generate(
                    torch.tensor([prompts[index] for index in chosen]),
                    attention_mask=torch.ones(len(chosen), length, dtype=torch.int64),
                    max_new_tokens=max_tokens,
                    do_sample=False,
                )
            for index, row in zip(chosen, ids[:, length:].tolist(), strict=True):
                outputs[index] = row[: row.index(self._eos)] if self._eos in row else row
        return outputs

    def logits(self, ids: list[int]) -> NDArray[np.float32]:
        """Return the scores of one forward pass, [num_tokens, vocab]."""
        with torch.no_grad():
            scores: NDArray[np.float32] = self._model(torch.tensor([ids]), use_cache=False).logits[0].numpy()
        return scores


class OpenVinoRunner:
    """The int8 IR: generation by the continuous batching that serves it, scores by plain inference."""

    def __init__(self, directory: Path) -> None:
        self.name = "int8 IR"
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 1  # GB
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(directory, scheduler, "CPU")
        self._eos: int = self._pipeline.get_config().eos_token_id
        self._request = ov.Core().compile_model(directory / "openvino_model.xml", "CPU").create_infer_request()

    def generate(self, prompts: list[list[int]], *, max_tokens: int) -> list[list[int]]:
        """Return greedy continuations of every prompt at once; the pipeline batches them."""
        config = openvino_genai.GenerationConfig(max_new_tokens=max_tokens, eos_token_id=self._eos)
        tensors = [ov.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        results = self._pipeline.generate(tensors, [config] * len(tensors))
        rows = [list(result.m_generation_ids[0]) for result in results]
        return [row[: row.index(self._eos)] if self._eos in row else row for row in rows]

    def logits(self, ids: list[int]) -> NDArray[np.float32]:
        """Return the scores of one pass over an empty KV cache, [num_tokens, vocab]."""
        self._request.reset_state()
        shape = (1, len(ids))
        outputs = self._request.infer(
            {
                "input_ids": np.array([ids], dtype=np.int64),
                "attention_mask": np.ones(shape, dtype=np.int64),
                "position_ids": np.arange(len(ids), dtype=np.int64)[None],
                "beam_idx": np.zeros(1, dtype=np.int32),
            }
        )
        scores: NDArray[np.float32] = outputs["logits"][0]
        return scores
