# SPDX-License-Identifier: Apache-2.0
"""The `config.pbtxt` of every model of the pipeline, from the tensor table and a deployment.

Types and shapes are upstream's; what is ours (execution policy, internal tensors) says why beside it.
"""

from collections import Counter
from collections.abc import Mapping

from ensemble_configs.render.pbtxt import Symbol, to_pbtxt
from ensemble_configs.render.tensors import (
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
from ensemble_configs.spec.model_names import CANARY, GRAPH, STEPS_OF_GRAPH, role_of
from ensemble_configs.spec.model_spec import ExtraModelSpec, ModelSpec, RateLimiterSpec
from ensemble_configs.spec.triton_spec import TritonSpec

# Triton counts a request's inputs and does not look which they are. In its ensemble a step without its required input
# is not run, and the client gets an empty answer for a success; so `preprocessing` takes anything and says what misses.
_WITHOUT_REQUIRED = (GRAPH, "preprocessing")
# The steps that start generations: what Triton's rate limiter and its queue can hold up.
_STARTING = ("tensorrt_llm", "ensemble", "tensorrt_llm_bls")

GENERATED = "# Generated from "  # how every config begins

Message = dict[str, object]


def render_configs(
    model: ModelSpec, triton: TritonSpec, *, source: str, parameters: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the text of the `config.pbtxt` of every Triton model of a language model, by name.

    Args:
        source: is named in the first line of each.
        parameters: settings that every adapter reads beside its release.
    """
    return {
        name: f"{GENERATED}{source} by make render\n{to_pbtxt(message)}"
        for name, message in model_messages(model, triton, parameters).items()
    }


def model_messages(
    model: ModelSpec, triton: TritonSpec, parameters: Mapping[str, str] | None = None
) -> dict[str, Message]:
    """Return the content of each `config.pbtxt` by the model's name: Triton's `ModelConfig` as plain data."""
    shared: Message = {}
    if parameters:
        shared = {"parameters": [{"key": key, "value": {"string_value": text}} for key, text in parameters.items()]}
    return {model.triton_prefix + step: _message(model, triton, step, shared) for step in model.steps}


def adapter_counts(model: ModelSpec) -> Counter[str]:
    """Return how many processes Triton starts for a language model, by Triton model and version ("ensemble-2")."""
    return Counter(
        {
            f"{model.triton_prefix}{step}-{number}": getattr(model.instances, role_of(step))
            for step in model.steps
            if step != GRAPH
            for number in _version_numbers(model, step)
        }
    )


def _message(model: ModelSpec, triton: TritonSpec, step: str, shared: Message) -> Message:
    if step == GRAPH:
        return _graph(model, triton)
    return _python_model(model, triton, step) | _policy(model, step) | shared


def render_extra_config(extra: ExtraModelSpec, text: str, *, source: str) -> str:
    """Return the user's `config.pbtxt`, with the instances that take part in the rate limiter."""
    limited: Message = {}
    if extra.rate_limiter is not None:
        limited = {"instance_group": [_instances(extra.instances, extra.rate_limiter, kind=extra.kind)]}
    return f"{GENERATED}{source} and {extra.name}'s own\n{text.rstrip()}\n{to_pbtxt(limited)}"


def _python_model(model: ModelSpec, triton: TritonSpec, step: str) -> Message:
    role = role_of(step)
    limiter = model.rate_limiter if role in _STARTING else None
    return {
        "name": model.triton_prefix + step,
        "backend": "python",
        "max_batch_size": triton.triton_max_batch_size,
        "version_policy": _versions(model, step),
        "input": [_input(n, row, model=role) for n, row in inputs_of(role)],
        "output": [_tensor(n, row, row.producer_dims) for n, row in outputs_of(role)],
        "instance_group": [_instances(getattr(model.instances, role), limiter)],
        **_queue(model, step),
    }


def _policy(model: ModelSpec, step: str) -> Message:
    """Return the transaction policy of a step; where it starts generations, execute() returns before any response."""
    if role_of(step) not in _STARTING:
        return {}
    return {"model_transaction_policy": {"decoupled": model.decoupled}}


def _versions(model: ModelSpec, step: str) -> Message:
    return {"specific": {"versions": _version_numbers(model, step)}}


def _version_numbers(model: ModelSpec, step: str) -> list[int]:
    """Return the versions that a step is loaded in.

    A request without a version goes to the highest that is loaded. So what clients call is loaded up to the first
    release, and is always that; a newer one, a candidate, is reached by name. The versions of a graph have one list of
    steps.
    """
    numbers = sorted(release.release for release in model.releases)
    if step == CANARY:
        numbers = [number for number in numbers if number == model.canary]
    elif step == GRAPH:
        numbers = [model.release]
    elif step not in STEPS_OF_GRAPH:
        numbers = [number for number in numbers if number <= model.release]
    return numbers


def _instances(count: int, limiter: RateLimiterSpec | None, *, kind: str = "KIND_CPU") -> Message:
    message: Message = {"count": count, "kind": Symbol(kind)}
    if limiter is not None:
        resources = [
            {"name": need.name, **({"global": True} if need.is_global else {}), "count": need.count}
            for need in limiter.resources
        ]
        message["rate_limiter"] = {"resources": resources, "priority": limiter.priority}
    return message


def _queue(model: ModelSpec, step: str) -> Message:
    """Return the settings of Triton's own queue before a step.

    Not for `postprocessing`: its one instance owns the state of every stream and gets every chunk, in order.
    With `dynamic_batching { preserve_ordering }` a cancelled chunk can hold up those of all streams for ever.
    """
    queue = model.triton_queue
    if queue is None or step == "postprocessing":
        return {}
    return {
        "dynamic_batching": {
            "priority_levels": queue.priority_levels,
            "default_priority_level": queue.default_priority_level,
            "default_queue_policy": {"allow_timeout_override": True, "max_queue_size": queue.max_queue_size},
        }
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
    if not row.is_required or row.instead or model in _WITHOUT_REQUIRED:
        message["optional"] = True
    return message


def _graph(model: ModelSpec, triton: TritonSpec) -> Message:
    # With one release each step's newest is meant, so that a step can be replaced by hand, as upstream has it; with
    # several, -1 would mix one's tokenizer with another's engine.
    version = model.release if model.other_releases else -1
    return {
        "name": model.triton_prefix + GRAPH,
        "platform": "ensemble",
        "max_batch_size": triton.triton_max_batch_size,
        "version_policy": _versions(model, GRAPH),
        "input": [_input(name, row, model=GRAPH) for name, row in inputs_of("ensemble")],
        "output": [_tensor(name, row) for name, row in outputs_of("ensemble")],
        "ensemble_scheduling": {"step": [_step(step, model.triton_prefix, version) for step in STEPS_OF_GRAPH]},
    }


def _step(model: str, prefix: str, version: int) -> Message:
    """Return one step of the graph.

    A tensor between two steps is called as its producer calls it, with an underscore before it.
    """
    inputs, outputs = {
        "preprocessing": ((CLIENT_INPUTS,), (PROMPT_TENSORS,)),
        "tensorrt_llm": ((PROMPT_TENSORS, CLIENT_INPUTS), (TOKEN_TENSORS, RESULT_TENSORS)),
        "postprocessing": ((TOKEN_TENSORS,), (TEXT_TENSORS,)),
    }[model]
    return {
        "model_name": prefix + model,
        "model_version": version,
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
