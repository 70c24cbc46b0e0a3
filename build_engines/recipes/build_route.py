# SPDX-License-Identifier: Apache-2.0
"""The way from a checkpoint to a compiled engine that a recipe takes through upstream's scripts."""

from typing import Literal

from build_engines.recipes.recipe import TensorRtRecipe
from build_engines.recipes.recipe_parts import MedusaRecipe
from build_engines.recipes.trtllm_versions import LLAMA_FAMILY, QUANTIZE_FORMATS

Route = Literal["quantize", "convert", "prepared"]


def route(recipe: TensorRtRecipe, architecture: str) -> Route:
    """Return which of upstream's scripts makes the checkpoint; `prepared`: a script has made it already."""
    if recipe.checkpoint_form == "tensorrt_llm":
        return "prepared"
    if architecture not in LLAMA_FAMILY or isinstance(recipe.speculation, MedusaRecipe):
        return "quantize"
    is_calibrated = recipe.format in ("fp8", "int4_awq", "w4a8_awq", "nvfp4")
    return "quantize" if is_calibrated else "convert"


def needs_calibration(recipe: TensorRtRecipe, architecture: str) -> bool:
    """Return True if the script runs the model on text."""
    match route(recipe, architecture):
        case "prepared":
            return False
        case "convert":
            return recipe.format == "smoothquant" or recipe.kv_format == "int8"
        case "quantize":
            is_quantized = QUANTIZE_FORMATS.get(recipe.format) not in ("full_prec", "int8_wo", "int4_wo")
            return is_quantized or recipe.kv_format in ("int8", "fp8")


def max_draft_len(recipe: TensorRtRecipe) -> int:
    """Return the drafted tokens that a step of the engine verifies; 0 without speculation."""
    return int(getattr(recipe.speculation, "max_draft_len", 0))
