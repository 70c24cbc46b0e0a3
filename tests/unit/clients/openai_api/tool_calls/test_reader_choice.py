# SPDX-License-Identifier: Apache-2.0
"""The style of calls that a chat template asks for."""

import pytest

from clients.openai_api.tool_calls.reader_choice import Style, style_of


@pytest.mark.parametrize(
    ("template", "style"),
    [
        (r"{{- '<tool_call>\n{\"name\": \"' }}{{- tool_call.name }}{{- '\", \"arguments\": ' }}", Style.HERMES),
        ("{{- '\\n<tool_call>\\n<function=' + tool_call.name + '>\\n' }}", Style.QWEN3_CODER),
        ('{{- "[TOOL_CALLS] [" }}{%- for tool_call in message.tool_calls %}', Style.MISTRAL),
        ("{{- '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}", Style.MISTRAL),
        ('{{- "<|python_tag|>" + tool_call.name + ".call(" }}', Style.LLAMA),
        ("""{{- "Environment: ipython\\n" }}{{- '"parameters": ' }}""", Style.LLAMA),
        ("""{{- "Environment: ipython\\n" }}{{- '[' + tool_call.name + '(' }}""", None),
        ("""{{- '"parameters": ' }}""", None),
        ("{{- '\\n<tool_call>' + tc.name }}<arg_key>{{ k }}</arg_key>", None),
        ("{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' }}", None),
        ("", None),
    ],
    ids=[
        "Qwen3", "Qwen3-Coder", "Mistral v3", "Mistral v13", "Llama 3.1", "Llama 3.2", "Llama 3.2 in Python", "a word",
        "GLM 4.5", "no tools", "empty",
    ],
)  # fmt: skip
def test_a_template_tells_its_style(template: str, style: Style | None) -> None:
    assert style_of(template) is style
