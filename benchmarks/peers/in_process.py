# SPDX-License-Identifier: Apache-2.0
"""The engine of our side alone, in a process of its own, without server and network: the most that a server can be."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

from benchmarks.peers import model_files
from benchmarks.peers.ensemble import NAMES, openvino_version, weights
from benchmarks.peers.peer import Answered, Bits, Started
from benchmarks.support.in_process import in_child_process
from benchmarks.support.workload import Ask
from clients.load.load_options import Load
from clients.load_run.load_record import LoadRecord
from serving.text.tokenization import PromptTokenizer


class InProcessOpenVino:
    """OpenVINO GenAI's continuous batching, step by step, with the same tokenizer and detokenizer work."""

    def __init__(self, bits: Bits) -> None:
        self.beside: str | None = NAMES[bits]
        self.name = f"in-process OpenVINO {'int8' if bits == 8 else 'bf16'}"
        self.precision = weights(bits)
        self._bits: Bits = bits
        self.needs: tuple[Path, ...] = (model_files.CHECKPOINT, model_files.OPENVINO[bits])

    @contextlib.contextmanager
    def started(self) -> Iterator[Started]:
        """Yield the process of `benchmarks.support.in_process`."""
        spec = model_files.deployment(self._bits)
        with tempfile.TemporaryDirectory() as folder:
            deployment = Path(folder) / "deployment.yaml"
            deployment.write_text(yaml.safe_dump(spec.model_dump(mode="json")))
            with in_child_process(deployment) as ask_child:
                tokenizer = PromptTokenizer.from_spec(spec.model.tokenizer)
                yield TextEngine(ask_child, tokenizer, version=openvino_version())


class TextEngine:
    """An engine with its text on both sides, in a process that is asked by `ask_child`."""

    def __init__(
        self, ask_child: Callable[[Ask], list[LoadRecord]], tokenizer: PromptTokenizer, *, version: str
    ) -> None:
        self.version = version
        self.settings = "python -m benchmarks.support.in_process, with the same deployment"
        self._ask_child = ask_child
        self._tokenizer = tokenizer

    def count(self, text: str) -> int:
        """Return how many tokens the engine is given for a prompt."""
        return len(self._tokenizer.encode(text))

    def put_on(self, load: Load) -> Answered:
        """Put a load on the process, in which users are seats; every request asks for one number of tokens."""
        turns = [turn for session in load.plan() for turn in session.turns]
        [output_tokens] = {turn.max_tokens for turn in turns}
        records = self._ask_child(Ask([turn.text for turn in turns], output_tokens, num_users=load.num_users))
        return Answered(records, client_cpu=[], server_cpu_s=None)
