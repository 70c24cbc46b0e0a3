# SPDX-License-Identifier: Apache-2.0
"""How Triton's models are called: upstream's names, behind a prefix where a server has several language models."""

PYTHON_MODELS = ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls")
STEPS_OF_GRAPH = ("preprocessing", "tensorrt_llm", "postprocessing")
GRAPH = "ensemble_graph"  # these three as Triton's own ensemble
MODELS = (*PYTHON_MODELS, GRAPH)


def prefix_of(model_name: str, step: str) -> str:
    """What stands before upstream's name.

    Args:
        model_name: as Triton knows the model: "chat_tensorrt_llm".
        step: which it is of upstream's: "tensorrt_llm".
    """
    if not model_name.endswith(step):
        raise ValueError(f"{model_name!r} is not a {step}; name the model's folder so that it ends with that")
    return model_name.removesuffix(step)
