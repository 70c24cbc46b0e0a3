# SPDX-License-Identifier: Apache-2.0
"""Dynamo's frontend with its mocker, a simulated engine, asked by OpenAI's API."""

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers import model_files
from benchmarks.peers.child_server import serving
from benchmarks.peers.cpu_parts import ENGINE, FRONT_DOOR, SERVER, cpu_by_part
from benchmarks.peers.peer import AskedServer, Started, is_ready
from trireme.base.free_ports import free_ports

_HOME = model_files.ROOT / ".tools" / "dynamo"
_PYTHON = str(_HOME / "bin" / "python")
_MODEL = "mocked"


class DynamoMocker:
    """Dynamo at its defaults, but for the time of a step, and a folder in place of etcd.

    The mocker's own times are a polynomial of the batch for some GPU, which `--speedup-ratio` divides. Its
    configuration file takes a fixed time of a step as well, of one with prefill and of one without.

    Args:
        step_ms: time of a step of either kind.
    """

    precision = "no model"
    needs: tuple[Path, ...] = (Path(_PYTHON),)

    def __init__(self, tokenizer_dir: Path, *, step_ms: float, beside: str | None = None) -> None:
        self.name = "Dynamo's frontend + mocker"
        self.beside = beside
        self._tokenizer_dir = tokenizer_dir
        self._step_ms = step_ms

    @contextlib.contextmanager
    def started(self) -> Iterator[Started]:
        """Yield the frontend on a free port of this machine, with one mocker."""
        [port] = free_ports(1)
        url = f"http://127.0.0.1:{port}/v1"
        timing = {"type": "fixed", "prefill_ms": self._step_ms, "decode_ms": self._step_ms}
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / "mocker.json"
            engine = {"engine": {"timing_model": timing}, "dynamo": {"enable_local_indexer": True}}
            config.write_text(json.dumps(engine))
            found = ["--discovery-backend", "file"]
            place = ["--http-host", "127.0.0.1", "--http-port", str(port)]
            model = ["--model-path", str(self._tokenizer_dir), "--model-name", _MODEL]
            with serving(
                [_PYTHON, "-m", "dynamo.frontend", *found, *place],
                [_PYTHON, "-m", "dynamo.mocker", *found, *model, "--extra-engine-args", str(config)],
                ready=lambda: is_ready(url, _MODEL),
                environment={"DYN_FILE_KV": f"{folder}/discovery", "HF_HUB_OFFLINE": "1"},
            ) as cpu_s:
                settings = (
                    "python -m dynamo.frontend --discovery-backend file; python -m dynamo.mocker "
                    f"--discovery-backend file --extra-engine-args {json.dumps(engine)}"
                )
                yield AskedServer(
                    url,
                    _MODEL,
                    version=_version(),
                    settings=settings,
                    cpu_s=cpu_s,
                    cpu_parts_s=lambda: cpu_by_part(cpu_s.processes(), _part_of),
                )


def _part_of(command: list[str]) -> str:
    return ENGINE if "dynamo.mocker" in command else FRONT_DOOR if "dynamo.frontend" in command else SERVER


def _version() -> str:
    [found] = _HOME.glob("lib/python3.*/site-packages/ai_dynamo-*.dist-info")
    return f"Dynamo {found.name.removesuffix('.dist-info').partition('-')[2]}"
