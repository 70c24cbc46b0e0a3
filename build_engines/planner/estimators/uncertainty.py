# SPDX-License-Identifier: Apache-2.0
"""The uncertainty of a prediction, from the errors on what was left out of the fit, and from what nobody measured."""

import math
from functools import cache
from typing import Any

import yaml

from build_engines.checkpoint.checkpoint_config import read_model_shape
from build_engines.checkpoint.known_models import known_models
from build_engines.checkpoint.model_costs import ModelCosts
from build_engines.planner.estimators.estimator_choice import stated_errors
from build_engines.planner.estimators.strata import stratum_of
from build_engines.planner.roofline.candidates import Candidate
from build_engines.planner.roofline.efficiencies import TABLE

# Factors by judgement, not by data: no published figure here has these.
_UNMEASURED = {
    "weights that are unpacked first": 1.35,
    "context parallelism": 1.5,
    "several nodes": 1.3,
    "linear attention": 1.3,
}


def factor_of(candidate: Candidate, estimator: str = "roofline") -> tuple[float, list[str]]:
    """Return the factor within which 9 of 10 predictions are expected to lie, either way.

    The error is of tokens/s and TPOT, on measured engines of the candidate's stratum. The list names what of the
    candidate was never measured.
    """
    unmeasured = list(_unmeasured(candidate))
    logs = [math.log(_UNMEASURED[name]) for name in unmeasured]
    stratum = stratum_of(candidate.engine)
    if estimator != "roofline":  # fitted to none of the published models and GPUs: its error on them is of all
        stated = stated_errors()
        logs.append(math.log(stated.get(stratum, stated["all"])[estimator]["p90"]))
        return math.exp(math.hypot(*logs)), unmeasured
    errors = _table()["errors"][stratum]
    known = {"gpu_left_out": _is_known_gpu(candidate), "model_left_out": _is_known_model(candidate)}
    unmeasured += [] if known["gpu_left_out"] else [candidate.engine.gpu.title]
    unmeasured += [] if known["model_left_out"] else ["this model"]
    hows = ["fitted", *(how for how, is_known in known.items() if not is_known)]
    logs.append(math.log(max(errors[how]["within"] for how in hows)))
    return math.exp(math.hypot(*logs)), unmeasured


def _unmeasured(candidate: Candidate) -> list[str]:
    engine, layout = candidate.engine, candidate.layout
    found = {
        "weights that are unpacked first": engine.formats.linear.is_unpacked_on(engine.gpu.sm),
        "context parallelism": layout.cp_size > 1,
        "linear attention": bool(engine.costs.model.linear_layers),
        "several nodes": layout.world_size > engine.gpu.nvlink_domain > 1 and not engine.gpu.is_bridged,
    }
    return [name for name, is_so in found.items() if is_so]


def _is_known_gpu(candidate: Candidate) -> bool:
    return candidate.engine.gpu.name in _table()["fitted_on"]["gpus"]


def _is_known_model(candidate: Candidate) -> bool:
    return candidate.engine.costs.attention_size in _sizes()


@cache
def _sizes() -> frozenset[int]:
    """Return the sizes of attention of the models that were fitted: a model by another name is known by its size."""
    models = _table()["fitted_on"]["models"]
    return frozenset(ModelCosts.of(read_model_shape(known_models()[name].config)).attention_size for name in models)


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return table
