# SPDX-License-Identifier: Apache-2.0
"""The kinds of engines whose predictions are off by different amounts, so that each has errors of its own."""

from build_engines.planner.roofline.step_time import Engine

# Mixtral's eight are dense matrices in turns; a step of many small ones pads, routes and waits for the fullest rank.
_FEW_EXPERTS = 8
PLAIN = "plain"


def stratum_of(engine: Engine) -> str:
    """Return the kind of an engine: `plain`, `four bits`, `experts`, or `experts in four bits`."""
    experts = engine.costs.model.expert_layers
    has_many = any(each.num_experts > _FEW_EXPERTS for each in experts)
    has_four_bits = engine.formats.name in {"nvfp4", "mxfp4"}
    match has_many, has_four_bits:
        case True, True:
            return "experts in four bits"
        case True, False:
            return "experts"
        case False, True:
            return "four bits"
    return PLAIN


STRATA = (PLAIN, "four bits", "experts", "experts in four bits")
