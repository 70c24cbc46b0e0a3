# SPDX-License-Identifier: Apache-2.0
"""The uncertainty of a prediction, from the errors on what was left out of the fit, and from what nobody measured."""

import math
from functools import cache

import yaml

from build_engines.checkpoint.checkpoint_config import read_model_shape
from build_engines.checkpoint.known_models import known_models
from build_engines.checkpoint.model_costs import ModelCosts
from build_engines.checkpoint.model_shape import LatentAttention
from build_engines.planner.estimators.estimator_choice import stated_errors
from build_engines.planner.estimators.published import scored
from build_engines.planner.roofline.candidates import Candidate
from build_engines.planner.roofline.efficiencies import TABLE

# Factors by judgement, not by data: no published figure here has these.
_UNMEASURED = {
    "weights that are unpacked first": 1.35,
    "FP4": 1.4,
    "pipeline parallelism": 1.25,
    "context parallelism": 1.5,
    "expert parallelism": 1.3,
    "latent attention": 1.35,
    "sliding windows": 1.15,
    "several nodes": 1.3,
}


def factor_of(candidate: Candidate, estimator: str = "roofline") -> tuple[float, list[str]]:
    """Return the factor within which 9 of 10 predictions are expected to lie, either way.

    The list names what of the candidate was never measured.
    """
    unmeasured = list(_unmeasured(candidate))
    logs = [math.log(_UNMEASURED[name]) for name in unmeasured if name in _UNMEASURED]
    if estimator != "roofline":  # fitted to none of the published models and GPUs: its error on them is of all
        logs.append(math.log(stated_errors()[estimator]["p90"]))
        return math.exp(math.hypot(*logs)), unmeasured
    errors = _errors()
    is_known_gpu, is_known_model = _is_known(candidate)
    if not is_known_gpu:
        unmeasured.append(candidate.engine.gpu.title)
        logs.append(math.log(errors["gpu_left_out"]["p90"]))
    if not is_known_model:
        unmeasured.append("this model")
        logs.append(math.log(errors["model_left_out"]["p90"]))
    logs.append(math.log(errors["fitted"]["p90"]))
    return math.exp(math.hypot(*logs)), unmeasured


def _unmeasured(candidate: Candidate) -> list[str]:
    engine, layout = candidate.engine, candidate.layout
    model, linear = engine.costs.model, engine.formats.linear
    found = {
        "weights that are unpacked first": linear.is_unpacked,
        "FP4": linear.compute == "fp4",
        "pipeline parallelism": layout.pp_size > 1,
        "context parallelism": layout.cp_size > 1,
        "expert parallelism": layout.ep_size > 1,
        "latent attention": isinstance(model.attention, LatentAttention),
        "sliding windows": any(layer.sliding_window for layer in model.layers),
        "several nodes": layout.world_size > candidate.engine.gpu.nvlink_domain > 1,
    }
    return [name for name, is_so in found.items() if is_so]


def _is_known(candidate: Candidate) -> tuple[bool, bool]:
    gpus, sizes = _fitted_on()
    size = candidate.engine.costs.attention_size
    return candidate.engine.gpu.name in gpus, size in sizes


@cache
def _fitted_on() -> tuple[frozenset[str | None], frozenset[int]]:
    rows = scored()
    models = {one.model for one in rows}
    sizes = {ModelCosts.of(read_model_shape(known_models()[name].config)).attention_size for name in models}
    return frozenset(one.gpu for one in rows), frozenset(sizes)


@cache
def _errors() -> dict[str, dict[str, float]]:
    errors: dict[str, dict[str, float]] = yaml.safe_load(TABLE.read_text(encoding="utf-8"))["errors"]
    return errors
