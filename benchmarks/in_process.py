# SPDX-License-Identifier: Apache-2.0
"""The denominator: the best that the same engine does in a process of its own, with nothing between it and its caller.

Same settings and threads, the same tokenizer and detokenizer work, tokens read step by step. Asked over a pipe, so that
its process does nothing else: `python -m benchmarks.in_process DEPLOYMENT`, one JSON `Ask` a line in, one `Run` out.
"""

import itertools
import sys
import time
from pathlib import Path

import msgspec

from benchmarks.workload import Ask, Run
from ensemble_configs.deployment import load_deployment
from serving.detokenization import StreamText, TextDecoder
from serving.engines.base import Engine, GenerationRequest, SamplingParams
from serving.engines.providers import create_engine
from serving.tokenization import PromptTokenizer


class InProcess:
    """An engine with its text on both sides."""

    def __init__(self, deployment: Path) -> None:
        spec = load_deployment(deployment)
        self._engine: Engine = create_engine(spec.model.engine)
        self._tokenizer = PromptTokenizer.from_spec(spec.model.tokenizer)
        self._decoder = TextDecoder.from_spec(spec.model.tokenizer)
        self._keys = itertools.count(1)

    def run(self, ask: Ask) -> Run:
        """All requests at once, to their last token."""
        sampling = SamplingParams(max_tokens=ask.output_tokens, min_tokens=ask.output_tokens, end_id=-1)
        start_s = time.perf_counter()
        texts: dict[int, StreamText] = {}
        arrivals_s: dict[int, list[float]] = {}
        for prompt in ask.prompts:
            key = next(self._keys)
            texts[key] = StreamText(self._decoder)
            arrivals_s[key] = []
            input_ids = self._tokenizer.encode(prompt).tolist()
            self._engine.add(GenerationRequest(key=key, input_ids=input_ids, sampling=sampling))
        num_tokens, num_running = 0, len(texts)
        while num_running:
            for chunk in self._engine.step():
                texts[chunk.key].push(chunk.token_ids)
                num_tokens += len(chunk.token_ids)
                if chunk.finish_reason is not None:
                    texts[chunk.key].finish()
                    num_running -= 1
                arrivals_s[chunk.key].append(time.perf_counter() - start_s)
        return Run.of(list(arrivals_s.values()), num_tokens=num_tokens)


def main() -> None:
    """Answer each line of standard input."""
    side = InProcess(Path(sys.argv[1]))
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(side.run(msgspec.json.decode(line, type=Ask))) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
