# SPDX-License-Identifier: Apache-2.0
"""The numbers of a prompt's beginnings, by the tensors of a request, as a gateway has them by what it sends."""

import msgspec

from ensemble_configs.chat.prefix_numbers import PromptPrefix, prompt_prefix
from serving.requests.tensor_sink import Tensors

_MESSAGES = msgspec.json.Decoder(list[msgspec.Raw])


def prefix_of(tensors: Tensors) -> PromptPrefix | None:
    """Return the numbers of a request's prompt; None: it has several, or none that could be read.

    Args:
        tensors: by the names of the ensemble's inputs.
    """
    values = {name: _value(tensors, name) for name in ("text_input", "messages", "tools", "tenant", "lora_name")}
    if any(name in tensors and tensors[name].size > 1 for name in values):
        return None
    adapter = values["lora_name"]
    if not adapter and "lora_task_id" in tensors and tensors["lora_task_id"].size == 1:
        adapter = str(int(tensors["lora_task_id"].item())).encode()
    try:
        messages = [bytes(each) for each in _MESSAGES.decode(values["messages"])] if values["messages"] else []
        return prompt_prefix(
            messages=messages,
            tools=values["tools"],
            text=b"" if messages else values["text_input"],
            tenant=values["tenant"].decode(),
            adapter=adapter.decode(),
        )
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _value(tensors: Tensors, name: str) -> bytes:
    """Return the only text of a tensor; empty: there is none, or several."""
    found = tensors.get(name)
    value = b"" if found is None or found.size != 1 else found.item()
    return value if isinstance(value, bytes) else str(value).encode()
