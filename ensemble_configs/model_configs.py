# SPDX-License-Identifier: Apache-2.0
"""The `config.pbtxt` of every model of the pipeline, from the tensor table and a deployment.

Types and shapes are upstream's; what is ours (execution policy, internal tensors) says why beside it.
"""

from ensemble_configs.deployment import DeploymentSpec
from ensemble_configs.pbtxt import Symbol, to_pbtxt
from ensemble_configs.tensors import (
    CLIENT_INPUTS,
    PROMPT_TENSORS,
    RESULT_TENSORS,
    TEXT_TENSORS,
    TOKEN_TENSORS,
    Tensor,
    inputs_of,
    named_at,
    outputs_of,
)

PYTHON_MODELS = ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls")
GRAPH = "ensemble_graph"  # the first three as Triton's own ensemble
MODELS = (*PYTHON_MODELS, GRAPH)

# Triton counts a request's inputs and does not look which they are. In its ensemble a step without its required input
# is not run, and the client gets an empty answer for a success; so `preprocessing` takes anything and says what misses.
_WITHOUT_REQUIRED = (GRAPH, "preprocessing")

GENERATED = "# Generated from "  # how every config begins

Message = dict[str, object]

_DECOUPLED: Message = {"model_transaction_policy": {"decoupled": True}}


def render_configs(spec: DeploymentSpec, *, source: str) -> dict[str, str]:
    """The text of every model's `config.pbtxt`, by model name. `source` is named in the first line of each."""
    messages: dict[str, Message] = {
        "preprocessing": _python_model(spec, "preprocessing"),
        # Decoupled: any number of responses for a request, and execute() returns before the first of them.
        "tensorrt_llm": _python_model(spec, "tensorrt_llm") | _DECOUPLED,
        # One instance owns the state of every stream, and without dynamic batching it gets every chunk, in order. With
        # `dynamic_batching { preserve_ordering }` a cancelled chunk can hold up those of all streams for ever.
        "postprocessing": _python_model(spec, "postprocessing"),
        "ensemble": _python_model(spec, "ensemble") | _DECOUPLED,
        "tensorrt_llm_bls": _python_model(spec, "tensorrt_llm_bls") | _DECOUPLED,
        GRAPH: _graph(spec),
    }
    return {name: f"{GENERATED}{source} by make render\n{to_pbtxt(message)}" for name, message in messages.items()}


def _python_model(spec: DeploymentSpec, name: str) -> Message:
    return {
        "name": name,
        "backend": "python",
        "max_batch_size": spec.triton.triton_max_batch_size,
        "input": [_input(n, row, model=name) for n, row in inputs_of(name)],
        "output": [_tensor(n, row, row.producer_dims) for n, row in outputs_of(name)],
        "instance_group": [{"count": 1, "kind": Symbol("KIND_CPU")}],
    }


def _tensor(name: str, row: Tensor, dims: tuple[int, ...] | None = None) -> Message:
    return {"name": name, "data_type": Symbol(row.data_type), "dims": list(dims or row.dims)}


def _input(name: str, row: Tensor, *, model: str) -> Message:
    message = _tensor(name, row)
    # Upstream reshapes the engine step's scalars to []. We do not: Triton 2.51 then lets a batch of none through and
    # dies of it (SIGSEGV). What a client may send is the same.
    # Ragged: chunks of different length go to the detokenizer in one batch.
    if model == "postprocessing" or (model == "tensorrt_llm" and row.is_ragged):
        message["allow_ragged_batch"] = True
    if not row.is_required or model in _WITHOUT_REQUIRED:
        message["optional"] = True
    return message


def _graph(spec: DeploymentSpec) -> Message:
    return {
        "name": GRAPH,
        "platform": "ensemble",
        "max_batch_size": spec.triton.triton_max_batch_size,
        "input": [_input(name, row, model=GRAPH) for name, row in inputs_of("ensemble")],
        "output": [_tensor(name, row) for name, row in outputs_of("ensemble")],
        "ensemble_scheduling": {"step": [_step("preprocessing"), _step("tensorrt_llm"), _step("postprocessing")]},
    }


def _step(model: str) -> Message:
    """One step: a tensor between two steps is called as its producer calls it, with an underscore before it."""
    inputs, outputs = {
        "preprocessing": ((CLIENT_INPUTS,), (PROMPT_TENSORS,)),
        "tensorrt_llm": ((PROMPT_TENSORS, CLIENT_INPUTS), (TOKEN_TENSORS, RESULT_TENSORS)),
        "postprocessing": ((TOKEN_TENSORS,), (TEXT_TENSORS,)),
    }[model]
    return {
        "model_name": model,
        "model_version": -1,
        "input_map": [{"key": name, "value": _wire(row)} for name, row in named_at(model, *inputs)],
        "output_map": [
            {"key": name, "value": _wire(row)} for name, row in named_at(model, *outputs) if _is_read_in_ensemble(row)
        ],
    }


def _wire(row: Tensor) -> str:
    return row.ensemble or f"_{row.preprocessing or row.engine}".upper()


def _is_read_in_ensemble(row: Tensor) -> bool:
    # Triton refuses an ensemble tensor that no step reads and no client can ask for.
    return bool(row.ensemble or (row.preprocessing and row.engine) or row.postprocessing)
