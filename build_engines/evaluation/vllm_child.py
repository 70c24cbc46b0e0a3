# SPDX-License-Identifier: Apache-2.0
"""A program that answers and scores with an engine of vLLM, run by the interpreter of vLLM's environment.

`python -P vllm_child.py SPEC ANSWERS_FD`: the engine's spec as JSON in a file, questions as lines of JSON on standard
input, and an answer to each as a line on the descriptor. It imports what an engine's process imports, and of this room
nothing (`serving.process.code_links`).

{"prompts": [[...]], "num_tokens": [...]}   greedy answers: {"outputs": [[...]]}
{"score": [...], "file": "x.npy"}           log probabilities, float32 [num_tokens, vocab], saved: {"saved": true}
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from serving.engines.providers import create_engine
from serving.engines.seam.base import Engine, GenerationRequest, SamplingParams
from serving.engines.vllm.vllm_arguments import engine_arguments
from serving.engines.vllm.vllm_upstream import Core, Upstream, load_upstream


class Answering:
    """An engine behind the seam, as it is served."""

    def __init__(self, spec: VllmEngineSpec) -> None:
        self._engine: Engine = create_engine(spec)

    def ask(self, question: dict[str, Any]) -> dict[str, object]:
        """Return the greedy tokens after each prompt."""
        for key, (prompt, count) in enumerate(zip(question["prompts"], question["num_tokens"], strict=True)):
            sampling = SamplingParams(max_tokens=count, top_k=1)
            self._engine.add(GenerationRequest(key=key, input_ids=prompt, sampling=sampling))
        outputs: list[list[int]] = [[] for _ in question["prompts"]]
        while self._engine.has_work:
            for chunk in self._engine.step():
                if chunk.error is not None:
                    return {"error": f"item {chunk.key}: {chunk.error}"}
                outputs[chunk.key] += chunk.token_ids
        ends = list(self._engine.info.end_ids)
        return {"outputs": outputs, "end_ids": ends}


class Scoring:
    """An engine core that is asked for the log probabilities of a whole prompt, which the seam has no tensor for."""

    def __init__(self, spec: VllmEngineSpec) -> None:
        self._upstream: Upstream = load_upstream()
        # Nothing is found in the cache: cached tokens would have no log probabilities.
        arguments = engine_arguments(spec) | {"max_logprobs": -1, "enable_prefix_caching": False}
        self._core: Core = self._upstream.make_core(self._upstream.make_engine_args(**arguments))
        self._num_asked = 0

    def ask(self, question: dict[str, Any]) -> dict[str, object]:
        """Save the log probabilities of the token after each of the given ones."""
        self._num_asked += 1
        params = self._upstream.make_sampling_params(
            temperature=0.0, max_tokens=1, logprobs=-1, prompt_logprobs=-1, detokenize=False, ignore_eos=True
        )
        request, wave = self._core.preprocess_add_request(
            self._upstream.make_request(
                request_id=str(self._num_asked),
                prompt_token_ids=question["score"],
                mm_features=None,
                sampling_params=params,
                pooling_params=None,
                arrival_time=time.time(),
                lora_request=None,
                cache_salt=None,
                data_parallel_rank=None,
            )
        )
        self._core.add_request(request, wave)
        rows: list[NDArray[np.float32]] = []
        while self._core.scheduler.has_requests():
            outputs, is_executed = self._core.step_fn()
            self._core.post_step(is_executed)
            for output in outputs[0].outputs if outputs else ():
                if output.new_prompt_logprobs_tensors is not None:
                    rows.insert(0, _by_token(output.new_prompt_logprobs_tensors))
                if output.new_logprobs is not None:
                    rows.append(_by_token(output.new_logprobs))
        found = np.concatenate(rows) if rows else np.empty((0, 0), np.float32)
        if len(found) != len(question["score"]):
            return {"error": f"vLLM gave log probabilities of {len(found)} of {len(question['score'])} tokens"}
        np.save(question["file"], found)
        return {"saved": True}


def _by_token(given: Any) -> NDArray[np.float32]:
    """Return log probabilities in the order of token ids; vLLM gives them with their ids, the chosen token twice."""
    ids, values = np.asarray(given.logprob_token_ids), np.asarray(given.logprobs, dtype=np.float32)
    found = np.full((len(ids), int(ids.max()) + 1), -np.inf, dtype=np.float32)
    np.put_along_axis(found, ids.astype(np.int64), values, axis=1)
    return found


def main() -> None:
    """Answer until standard input ends."""
    data = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with os.fdopen(int(sys.argv[2]), "w", encoding="utf-8") as answers:
        side: Answering | Scoring | None = None
        for line in sys.stdin:
            question = json.loads(line)
            try:
                if side is None:
                    spec = VllmEngineSpec.model_validate(data)
                    side = Scoring(spec) if "score" in question else Answering(spec)
                answer = side.ask(question)
            except Exception as exc:  # whatever vLLM or torch raises: the other side says it, and the log has all
                sys.excepthook(type(exc), exc, exc.__traceback__)
                answer = {"error": " ".join(str(exc).split()) or repr(exc)}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
