# SPDX-License-Identifier: Apache-2.0
"""A process of AISimulate in its own environment, asked many questions: JSON lines out and in, read strictly."""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import msgspec

from trireme.base.errors import ServerError
from trireme.base.known_types import known
from trireme.base.project_files import CODE_ROOT

PYTHON = CODE_ROOT / ".tools" / "aisimulate" / "bin" / "python"
WORKER = Path(__file__).with_name("aisimulate_worker.py")
# Architectures that it does not know by name, and one that it knows with the same matrices and attention. What a window
# of Mistral's hides from attention, `aisimulate_estimator` does not ask about.
_KNOWN_AS: Mapping[str, str] = {"MistralForCausalLM": "LlamaForCausalLM"}
NOT_INSTALLED = "AISimulate is not installed; `make aisimulate` does it (1.5 GB in .tools/aisimulate)"


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A batch to estimate, filled up in flight; static: its sequences start and end together."""

    isl: int
    osl: int
    batch_size: int
    prompt_tokens_per_step: int
    is_static: bool = False


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A question about one model on one layout, in AISimulate's own words; sizes are those of one replica."""

    model: str  # a folder with a config.json
    system: str
    tp_size: int
    pp_size: int
    attention_dp_size: int
    moe_tp_size: int
    moe_ep_size: int
    linear: str
    experts: str
    kv_cache: str
    points: tuple[Point, ...]


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The figures of one point."""

    ttft_ms: float
    tpot_ms: float
    requests_per_s: float


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The figures of `points` in order, and the version of TensorRT-LLM that the tables were measured with."""

    version: str
    points: tuple[Figures, ...]


class Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The reason why there is no answer."""

    error: str


class AiSimulateProcess:
    """A process that starts with the first question.

    The tables of a GPU take seconds to read, a question then milliseconds.
    """

    def __init__(self, command: tuple[str, ...] = (str(PYTHON), "-I", str(WORKER))) -> None:
        self._command = command
        self._started: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None  # what it prints, as long as it runs

    @property
    def is_installed(self) -> bool:
        """Return True if AISimulate is installed."""
        return Path(self._command[0]).is_file()

    def ask(self, question: Question) -> Answer | Refusal:
        """Return the answer, its figures all finite and not below 0.

        Raises:
            ServerError: AISimulate is not installed, or the process ended or answered something else.
        """
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(question) + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line.endswith(b"\n"):
            last_error = self._last_error()
            self.close()
            raise ServerError(f"AISimulate ended without an answer: {last_error}")
        return _answer(line, num_points=len(question.points))

    def close(self) -> None:
        """End the process."""
        process, self._started = self._started, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
        process.kill()  # it keeps nothing
        process.wait()
        if self._errors is not None:
            self._errors.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._started is None:
            if not self.is_installed:
                raise ServerError(NOT_INSTALLED)
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
            self._started = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=os.environ | {"HF_HUB_OFFLINE": "1"},
            )
        return self._started

    def _last_error(self) -> str:
        assert self._errors is not None
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"


def _answer(line: bytes, *, num_points: int) -> Answer | Refusal:
    try:
        found = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        if "error" in found:
            return msgspec.json.decode(line, type=known(Refusal))
        answer = msgspec.json.decode(line, type=known(Answer))
    except msgspec.DecodeError as exc:
        raise ServerError(f"AISimulate answered what is not an answer ({exc}): {line[:200]!r}") from exc
    if len(answer.points) != num_points:
        raise ServerError(f"AISimulate answered {len(answer.points)} points for {num_points}")
    for point in answer.points:
        if point.ttft_ms <= 0 or point.tpot_ms < 0 or point.requests_per_s < 0:
            raise ServerError(f"AISimulate answered what cannot be: {point}")
    return answer


@contextlib.contextmanager
def model_folder(config: Mapping[str, object]) -> Iterator[str]:
    """Yield a folder with the `config.json` of a model, as AISimulate can read it.

    It has all sizes of the model, but nothing of its formats, which are asked for by name.
    """
    kept = {name: value for name, value in config.items() if name != "quantization_config"}
    names = kept.get("architectures")
    if isinstance(names, list):
        kept["architectures"] = [_KNOWN_AS.get(name, name) for name in names]
    with tempfile.TemporaryDirectory(prefix="trireme-plan-") as folder:
        (Path(folder) / "config.json").write_bytes(msgspec.json.encode(kept))
        yield folder
