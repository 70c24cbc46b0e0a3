# SPDX-License-Identifier: Apache-2.0
"""The engine processes of one server in a test, and requests in text to their clients of the engine."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils
from recording_tensor_sink import RecordingTensorSink
from simulated_release import write_release

from ensemble_configs.render.release_file import load_release
from ensemble_configs.spec.admission_spec import AdmissionSpec
from serving.engine_process.engine_sources import EngineListener, OwnedEngine
from serving.pipeline.generation import GenerationService
from serving.pipeline.request_origin import RequestOrigin
from serving.telemetry.request_metrics import RequestMetrics


class Owner:
    """The owner of an engine, as `tensorrt_llm` is for a client of the engine, with requests of its own."""

    def __init__(
        self,
        root: Path,
        *,
        release: int = 1,
        is_accumulating: bool = False,
        admission: AdmissionSpec | None = None,
        **engine: object,
    ) -> None:
        folder = write_release(root, engine, release=release, is_accumulating=is_accumulating, admission=admission)
        self.bls_folder = root / "tensorrt_llm_bls" / str(release)
        self.source = OwnedEngine(folder, EngineListener(str(release)))
        metrics = RequestMetrics(pb_utils.MetricFamily, model="tensorrt_llm", version=str(release))
        self.service = GenerationService(load_release(folder), self.source, metrics=metrics)

    def close(self) -> None:
        """Unload the engine."""
        self.service.close()


@contextlib.contextmanager
def two_owners(root: Path, **more: Any) -> Iterator[dict[int, Owner]]:
    """Yield releases 1 and 2, with engines that answer differently."""
    made = {release: Owner(root, release=release, seed=release, step_ms=1.0, **more) for release in (1, 2)}
    try:
        yield made
    finally:
        for owner in made.values():
            owner.close()


def _question(more: dict[str, object]) -> dict[str, npt.NDArray[np.generic]]:
    """Return a streaming request without an echo; text, numbers and flags by the names of the ensemble's inputs."""
    usual = {"text_input": "Who are you?", "max_tokens": 12, "stream": True, "exclude_input_in_output": True}
    tensors: dict[str, object] = usual | more
    return {name: value if isinstance(value, np.ndarray) else _array(value) for name, value in tensors.items()}


def ask(start: Callable[..., None], request_id: str = "", /, **tensors: object) -> RecordingTensorSink:
    """Send a request by a pipeline's `start`, or by a `functools.partial` of it with more arguments."""
    sink = RecordingTensorSink()
    start(_question(tensors), sink, RequestOrigin(request_id))
    return sink


def _array(value: object) -> npt.NDArray[np.generic]:
    match value:
        case str():
            return np.array([[value.encode()]], dtype=np.object_)
        case bool():
            return np.array([[value]], dtype=np.bool_)
        case float():
            return np.array([[value]], dtype=np.float32)
    return np.array([[value]], dtype=np.int32)


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait until `condition` holds."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "did not happen in time"
        time.sleep(0.005)
