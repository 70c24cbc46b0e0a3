# SPDX-License-Identifier: Apache-2.0
"""The rendering of chat lines on this side, for a server without a template, or with another one than is wanted."""

from collections.abc import Callable
from pathlib import Path

from clients.batch.line_error import LineError
from ensemble_configs.chat.chat_template import load_chat_template
from trireme.base.errors import RequestError, SpecError


def chat_renderer(path: Path) -> Callable[[list[dict[str, object]]], str]:
    """Return a function from messages to a prompt, by the template of a folder or file; it raises LineError.

    The server's tokenizer puts the begin token in front of every text itself (`tokenizer.add_special_tokens`, on by
    default), so one that the template begins with is taken off.

    Raises:
        SpecError: there is no template, or it is none; or jinja2 is not installed.
    """
    template = load_chat_template(path)
    if template is None:
        raise SpecError(
            f"--chat-template {path} has no chat template; name a folder with chat_template.jinja, or with a "
            "tokenizer_config.json that has chat_template, or the template's file",
            file=path,
        )

    def render(messages: list[dict[str, object]]) -> str:
        try:
            return template.render(messages).removeprefix(template.bos_token)
        except RequestError as exc:
            raise LineError(f"body.{exc.message}", code="chat_template", param="body.messages") from exc

    return render
