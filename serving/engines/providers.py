# SPDX-License-Identifier: Apache-2.0
"""The engine providers, by the name that a deployment calls them; each is imported only when it is asked for."""

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Iterator

import msgspec

from ensemble_configs.spec.engine.engine_spec import EngineSpec
from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec, TensorRtEngineSpec
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from ensemble_configs.spec.release_spec import ReleaseSpec
from serving.engines.seam.base import Engine
from serving.engines.seam.clock import Clock, WallClock
from serving.engines.seam.engine_start import EngineStart
from serving.engines.seam.model_folder import load_model_folder
from serving.engines.tensorrt_llm.tensorrt_llm_causes import explain, known_cause, where_it_is
from serving.process.run_dir import run_dir
from trireme.base.errors import ServerError, SpecError
from trireme.base.extras import how_to_install

# The extra of pyproject.toml that brings a module which only this provider imports.
_EXTRAS = {"openvino_genai": "", "tensorrt_llm": "build-trtllm"}
_MODULES = {"openvino": "openvino_genai", "tensorrt": "tensorrt_llm", "pytorch": "tensorrt_llm"}


def create_engine(spec: EngineSpec, *, clock: Clock | None = None, tells_kv_events: bool = False) -> Engine:
    """Load the engine of a deployment; takes seconds for a real one.

    Args:
        spec: names the provider.
        clock: where a simulated engine spends its time; real time by default. A real engine takes its own time.
        tells_kv_events: whether the engine tells what comes into its KV cache and goes, where its provider can.

    Raises:
        SpecError: the provider is not installed, or its model is not there or does not fit the spec.
    """
    if isinstance(spec, OpenVinoEngineSpec):
        return _openvino(spec)
    if isinstance(spec, TensorRtEngineSpec | PyTorchEngineSpec):
        return _tensorrt_llm(spec, tells_kv_events=tells_kv_events)
    if isinstance(spec, VllmEngineSpec):
        return _vllm(spec, tells_kv_events=tells_kv_events)
    return _simulated(spec, clock or WallClock(), tells_kv_events=tells_kv_events)


def _openvino(spec: OpenVinoEngineSpec) -> Engine:
    model = load_model_folder(spec.dir, weights="openvino_model.xml")
    check_installed(spec)
    from serving.engines.openvino.openvino_engine import OpenVinoEngine  # noqa: PLC0415

    return OpenVinoEngine(spec, model)


def _tensorrt_llm(spec: TensorRtEngineSpec | PyTorchEngineSpec, *, tells_kv_events: bool) -> Engine:
    check_installed(spec)
    from serving.engines.tensorrt_llm.trtllm_start import rank_environment  # noqa: PLC0415

    os.environ.update(rank_environment(spec))  # upstream reads it where it makes the LLM
    from serving.engines.tensorrt_llm.trtllm_loading import load_trtllm_engine  # noqa: PLC0415

    with _explained_imports():
        return load_trtllm_engine(spec, tells_kv_events=tells_kv_events)


@contextlib.contextmanager
def _explained_imports() -> Iterator[None]:
    """Add the cause and the cure to errors of TensorRT-LLM, where they are known.

    Raises:
        ServerError: an import has failed; upstream's text stands in it.
        SpecError: the model could not be loaded for a known cause.
    """
    try:
        yield
    except (ImportError, OSError) as exc:
        if isinstance(exc, OSError) and known_cause(str(exc)) is None:  # not of a library that is loaded by name
            raise
        finding, _ = explain("tensorrt_llm", str(exc))
        raise ServerError(f"{finding}; `trireme doctor --tensorrt-llm` tells more") from exc
    except SpecError as exc:
        cause = known_cause(exc.message) if exc.__cause__ is not None else None
        if cause is None:
            raise
        raise SpecError(f"{exc.message}; it needs {cause.wanted}: {cause.next_step}", field="engine") from exc


def _vllm(spec: VllmEngineSpec, *, tells_kv_events: bool) -> Engine:
    model = load_model_folder(spec.dir, weights="config.json")
    check_installed(spec)
    from serving.engines.vllm.vllm_engine import VllmEngine  # noqa: PLC0415
    from serving.engines.vllm.vllm_upstream import check_version, installed_version, load_upstream  # noqa: PLC0415

    check_version(spec.vllm, installed_version())
    return VllmEngine(spec, model, load_upstream(), tells_kv_events=tells_kv_events)


def _simulated(spec: SimulatedEngineSpec, clock: Clock, *, tells_kv_events: bool) -> Engine:
    from serving.engines.simulated.simulated_engine import SimulatedEngine  # noqa: PLC0415

    return SimulatedEngine(spec, clock, tells_kv_events=tells_kv_events)


def start_of_release(release: ReleaseSpec) -> EngineStart:
    """Return how the process of a release's engines starts on this machine, with its part of the machine.

    Raises:
        SpecError: a program that the engines need to be started is not installed.
    """
    match release.engine:
        case TensorRtEngineSpec() | PyTorchEngineSpec():
            from serving.engines.tensorrt_llm.trtllm_start import plan_engine_start  # noqa: PLC0415

            start = plan_engine_start(release.engine, os.environ, shutil.which)
        case VllmEngineSpec():
            from serving.engines.vllm.vllm_start import plan_vllm_start  # noqa: PLC0415

            start = plan_vllm_start(release.engine, os.environ, run_dir(), cpus=release.placement.cpus)
        case _:
            return EngineStart()
    placement = release.placement
    # Here and not only in the engine's process: ranks are started by the launcher, beside it.
    environment = start.environment | placement.environment()
    return msgspec.structs.replace(start, environment=environment, cpus=placement.cpus)


def check_installed(spec: EngineSpec) -> None:
    """Check that the package of the provider is installed.

    Raises:
        SpecError: it is not installed.
    """
    if isinstance(spec, VllmEngineSpec):
        from serving.engines.vllm.vllm_environment import check_environment  # noqa: PLC0415

        check_environment(spec)
        return
    module = _MODULES.get(spec.provider)
    if module is not None and importlib.util.find_spec(module) is None:
        extra = _EXTRAS[module]
        cure = f"; in NVIDIA's image: {where_it_is()}" if module == "tensorrt_llm" else ""
        raise SpecError(
            f"engine.provider {spec.provider!r} needs {module}, which is not installed; {how_to_install(extra)}{cure}",
            field="engine.provider",
            extra=extra,
        )
