# SPDX-License-Identifier: Apache-2.0
"""Names of Triton's models: upstream's names, behind a prefix where a server has several language models."""

PYTHON_MODELS = ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls")
STEPS_OF_GRAPH = ("preprocessing", "tensorrt_llm", "postprocessing")
GRAPH = "ensemble_graph"  # these three as Triton's own ensemble
MODELS = (*PYTHON_MODELS, GRAPH)
CANARY = "ensemble_canary"  # `ensemble` on the release that is tried out
ROUTING_MODELS = ("ensemble", "tensorrt_llm_bls")  # they send requests to other releases than their own
STEPS = (*PYTHON_MODELS, CANARY, GRAPH)


def role_of(step: str) -> str:
    """Return upstream's model that a step stands for: its adapter and its tensors."""
    return "ensemble" if step == CANARY else step


def prefix_of(model_name: str, step: str) -> str:
    """Return the text before upstream's name in the name of a Triton model.

    Args:
        model_name: as Triton knows the model: "chat_tensorrt_llm".
        step: which it is of upstream's: "tensorrt_llm".
    """
    for name in STEPS:
        if role_of(name) == step and model_name.endswith(name):
            return model_name.removesuffix(name)
    raise ValueError(f"{model_name!r} is not a {step}; name the model's folder so that it ends with that")
