# SPDX-License-Identifier: Apache-2.0
"""The numbers of a prompt's beginnings, by the tensors of a request, as a gateway has them by what it sends."""

from ensemble_configs.chat.prefix_numbers import PROMPT_INPUTS, PromptPrefix, prefix_of_inputs
from serving.requests.tensor_sink import Tensors


def prefix_of(tensors: Tensors) -> PromptPrefix | None:
    """Return the numbers of a request's prompt; None: it has several, or none that could be read.

    Args:
        tensors: by the names of the ensemble's inputs.
    """
    found = {name: tensors[name] for name in PROMPT_INPUTS if name in tensors}
    if any(tensor.size > 1 for name, tensor in found.items() if name != "lora_task_id"):
        return None
    return prefix_of_inputs({name: _bytes(tensor.item()) for name, tensor in found.items() if tensor.size == 1})


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
