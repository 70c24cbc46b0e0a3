# SPDX-License-Identifier: Apache-2.0
"""The denominator: the best that the same engine does in a process of its own, with nothing between it and its caller.

Same settings and threads, the same tokenizer and detokenizer work, tokens read step by step. Asked over a pipe, so that
its process does nothing else: `python -m benchmarks.support.in_process DEPLOYMENT`, one JSON `Ask` a line in, and a
line out with the records of its requests, as the load client keeps them.
"""

import contextlib
import itertools
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from benchmarks.support.workload import Ask
from clients.load_run.load_record import DONE, LoadRecord
from ensemble_configs.spec.deployment import load_deployment
from serving.engines.providers import create_engine
from serving.engines.seam.base import Engine, GenerationRequest, SamplingParams
from serving.text.detokenization import StreamText, TextDecoder
from serving.text.tokenization import PromptTokenizer


class InProcess:
    """An engine with its text on both sides."""

    def __init__(self, deployment: Path) -> None:
        spec = load_deployment(deployment)
        self._engine: Engine = create_engine(spec.model.engine)
        self._tokenizer = PromptTokenizer.from_spec(spec.model.tokenizer)
        self._decoder = TextDecoder.from_spec(spec.model.tokenizer)
        self._keys = itertools.count(1)

    def run(self, ask: Ask) -> list[LoadRecord]:
        """Run every request to its last token.

        As many run at a time as there are users, who send the next one at once.
        """
        waiting = deque(enumerate(ask.prompts))
        running: dict[int, tuple[LoadRecord, StreamText]] = {}
        records = []
        start_ns = time.perf_counter_ns()
        while waiting or running:
            while waiting and len(running) < (ask.num_users or len(ask.prompts)):
                key, record = self._begin(*waiting.popleft(), ask.output_tokens, start_ns)
                running[key] = record, StreamText(self._decoder)
            for chunk in self._engine.step():
                record, text = running[chunk.key]
                text.push(chunk.token_ids)
                if chunk.finish_reason is not None:
                    text.finish()
                record.times_ns.append(time.perf_counter_ns() - start_ns)
                record.tokens.append(len(chunk.token_ids))
                if chunk.finish_reason is not None:
                    record.end, record.end_ns = DONE, record.times_ns[-1]
                    records.append(running.pop(chunk.key)[0])
        return records

    def _begin(self, number: int, prompt: str, output_tokens: int, start_ns: int) -> tuple[int, LoadRecord]:
        at_ns = time.perf_counter_ns() - start_ns
        input_ids = self._tokenizer.encode(prompt).tolist()
        sampling = SamplingParams(max_tokens=output_tokens, min_tokens=output_tokens, end_id=-1)
        key = next(self._keys)
        self._engine.add(GenerationRequest(key=key, input_ids=input_ids, sampling=sampling))
        return key, LoadRecord(
            session=number, due_ns=at_ns, sent_ns=at_ns, input_tokens=len(input_ids), times_ns=[], tokens=[]
        )


@contextlib.contextmanager
def in_child_process(
    deployment: Path, *, python: str = sys.executable, environment: Mapping[str, str] | None = None
) -> Iterator[Callable[[Ask], list[LoadRecord]]]:
    """Yield a function that asks such a process, while the process lives.

    Args:
        deployment: file of the deployment with the engine.
        python: interpreter of the environment that holds the engine.
        environment: of the process; None: this process's own.
    """
    command = [python, "-m", "benchmarks.support.in_process", str(deployment)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        questions, answers = child.stdin, child.stdout

        def ask_child(ask: Ask) -> list[LoadRecord]:
            questions.write(msgspec.json.encode(ask) + b"\n")
            questions.flush()
            return msgspec.json.decode(answers.readline(), type=list[LoadRecord])

        yield ask_child
        questions.close()


def main() -> None:
    """Answer each line of standard input."""
    side = InProcess(Path(sys.argv[1]))
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(side.run(msgspec.json.decode(line, type=Ask))) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
