# SPDX-License-Identifier: Apache-2.0
"""The styles of tool calls: which one a chat template asks its model for, and the reader of each."""

from enum import StrEnum

from clients.openai_api.tool_calls.call_ids import new_call_id, new_mistral_call_id
from clients.openai_api.tool_calls.call_reader import CallReader, Grammar
from clients.openai_api.tool_calls.callable_tools import CallableTools
from clients.openai_api.tool_calls.hermes import read_hermes
from clients.openai_api.tool_calls.llama import read_llama
from clients.openai_api.tool_calls.mistral import read_mistral
from clients.openai_api.tool_calls.qwen3_coder import read_qwen3_coder


class Style(StrEnum):
    """A way in which models write calls, by the name that other servers have for its parser too."""

    HERMES = "hermes"
    LLAMA = "llama"
    MISTRAL = "mistral"
    QWEN3_CODER = "qwen3_coder"


_GRAMMARS: dict[Style, Grammar] = {
    Style.HERMES: read_hermes,
    Style.LLAMA: read_llama,
    Style.MISTRAL: read_mistral,
    Style.QWEN3_CODER: read_qwen3_coder,
}


def style_of(template: str) -> Style | None:
    """Return the style that a chat template's text asks for; None: it has no tools, or writes calls in another style.

    `<tool_call>` alone does not tell: Qwen3-Coder has XML inside, and GLM 4.5 (`<arg_key>`) what no reader here reads.
    The templates of Llama 3.2 have no `<|python_tag|>`, but the same environment and the same word for arguments.
    """
    if "[TOOL_CALLS]" in template:
        return Style.MISTRAL
    if "<tool_call>" in template:
        if "<arg_key>" in template:
            return None
        return Style.QWEN3_CODER if "<function=" in template else Style.HERMES
    if "<|python_tag|>" in template or ("Environment: ipython" in template and '"parameters": ' in template):
        return Style.LLAMA
    return None


def call_reader(style: Style, offered: CallableTools | None = None, *, max_calls: int | None = None) -> CallReader:
    """Return a reader of one answer in a style.

    Args:
        offered: the tools that may be called (`callable_tools`); None: any name may be called.
        max_calls: how many calls there may be; 1 where `parallel_tool_calls` is false. A further one is content.
    """
    new_id = new_mistral_call_id if style is Style.MISTRAL else new_call_id
    return CallReader(_GRAMMARS[style], offered=offered, max_calls=max_calls, new_id=new_id)
