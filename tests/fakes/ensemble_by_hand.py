# SPDX-License-Identifier: Apache-2.0
"""The ensemble in one process: the adapters of a model repository on the fake stub, wired as its `config.pbtxt` says.

What Triton itself does around the adapters is here in a few lines: it gives each step the inputs that were sent, makes
scalars of those with a `reshape`, and hands every response of the engine step to postprocessing.
"""

import contextlib
import importlib.util
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from serving.process.run_dir import RUN_DIR_VARIABLE

Array = npt.NDArray[np.generic]
Arrays = Mapping[str, Array]


class AdapterError(Exception):
    """An error response, as a client would see its text."""

    def __init__(self, error: pb_utils.TritonError) -> None:
        super().__init__(error.message())
        self.code = error.code()


def load_adapter(repository: Path, model: str) -> Any:
    """Import a model's `model.py` as the stub does, with a stub module that is not complete yet; not initialized."""
    path = repository / model / "1" / "model.py"
    name = f"{model}_adapter"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with pb_utils.as_while_a_model_is_imported():
        spec.loader.exec_module(module)
    return module.TritonPythonModel()


class _Instance:
    """A loaded model; the server hands it one batch at a time."""

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter
        self._is_busy = threading.Lock()

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> Any:
        with self._is_busy:
            return self._adapter.execute(requests)


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    yield
    if before is None:
        del os.environ[name]
    else:
        os.environ[name] = before


class EnsembleByHand:
    """The models of a repository, loaded; `close` unloads them."""

    def __init__(self, repository: Path) -> None:
        self._configs = {
            path.parent.name: text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
            for path in repository.glob("*/config.pbtxt")
        }
        self._steps = list(self._configs["ensemble_graph"].ensemble_scheduling.step)
        self.adapters: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as run_dir, _environment(RUN_DIR_VARIABLE, run_dir):
            for model in (*(step.model_name for step in self._steps), "ensemble", "tensorrt_llm_bls"):
                adapter = self.adapters[model] = load_adapter(repository, model)
                args = {"model_name": model, "model_version": "1", "model_repository": str(repository / model)}
                adapter.initialize(args | {"model_config": _as_json(self._configs[model])})
        pb_utils.InferenceRequest.loaded_models = {name: _Instance(model) for name, model in self.adapters.items()}

    def close(self) -> None:
        """Unload what was loaded."""
        pb_utils.InferenceRequest.loaded_models = {}
        for adapter in self.adapters.values():
            if hasattr(adapter, "finalize"):
                adapter.finalize()

    def ask(self, tensors: Arrays, model: str = "ensemble_graph") -> list[dict[str, Array]]:
        """Return every response to one request of a client, by the names of the ensemble's outputs.

        Raises:
            AdapterError: one of the steps answered with an error.
        """
        if model != "ensemble_graph":
            return self.ask_model(model, tensors)
        preprocessing, engine, postprocessing = self._steps
        outputs = [output.name for output in self._configs["ensemble_graph"].output]
        prompt = self.send(preprocessing.model_name, _mapped(preprocessing.input_map, tensors)).wait()
        wire = {**tensors, **_named_on_wire(preprocessing, _arrays(prompt[0]))}
        responses: list[dict[str, Array] | AdapterError] = []

        def hand_on(response: pb_utils.InferenceResponse) -> None:
            try:
                chunk = _named_on_wire(engine, _arrays(response))
                text = self.send(postprocessing.model_name, _mapped(postprocessing.input_map, chunk)).wait()
                produced = {**chunk, **_named_on_wire(postprocessing, _arrays(text[0]))}
                responses.append({name: produced[name] for name in outputs if name in produced})
            except AdapterError as exc:
                responses.append(exc)

        self.send(engine.model_name, _mapped(engine.input_map, wire), on_response=hand_on).wait()
        return [_raise_if_error(response) for response in responses]

    def ask_model(self, model: str, tensors: Arrays, *, request_id: str = "") -> list[dict[str, Array]]:
        """Return every response of one model, by its own names.

        Raises:
            AdapterError: the model answered with an error.
        """
        return [_arrays(response) for response in self.send(model, tensors, request_id=request_id).wait()]

    def send(
        self,
        model: str,
        tensors: Arrays,
        *,
        request_id: str = "",
        on_response: Callable[[pb_utils.InferenceResponse], None] = lambda _: None,
    ) -> pb_utils.ResponseSender:
        """Hand a request to a model; its sender gets the responses, now or later."""
        config = self._configs[model]
        request = pb_utils.InferenceRequest(
            model_name=model,
            request_id=request_id,
            inputs=[_as_configured(tensor, tensors[tensor.name]) for tensor in config.input if tensor.name in tensors],
            requested_output_names=[tensor.name for tensor in config.output],
        )
        sender = request.get_response_sender()
        sender.on_response = on_response
        responses = pb_utils.InferenceRequest.loaded_models[model].execute([request])
        if responses is not None:
            [response] = responses
            sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return sender


def _as_json(config: model_config_pb2.ModelConfig) -> str:
    """Return the config as the server hands it to a model: names of the protobuf message, and defaults, too."""
    text: str = json_format.MessageToJson(
        config, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return text


def _mapped(input_map: Mapping[str, str], wire: Arrays) -> dict[str, Array]:
    return {name: wire[wired] for name, wired in input_map.items() if wired in wire}


def _named_on_wire(step: Any, outputs: Arrays) -> dict[str, Array]:
    return {step.output_map[name]: array for name, array in outputs.items() if name in step.output_map}


def _as_configured(tensor: Any, array: Array) -> pb_utils.Tensor:
    """Return the input as the model sees it; the server has checked types and shapes before."""
    if tensor.HasField("reshape"):
        array = array.reshape([array.shape[0], *tensor.reshape.shape])
    return pb_utils.Tensor(tensor.name, array)


def _arrays(response: pb_utils.InferenceResponse) -> dict[str, Array]:
    error = response.error()
    if error is not None:
        raise AdapterError(error)
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}


def _raise_if_error(response: dict[str, Array] | AdapterError) -> dict[str, Array]:
    if isinstance(response, AdapterError):
        raise response
    return response
