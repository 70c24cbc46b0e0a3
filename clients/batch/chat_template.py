# SPDX-License-Identifier: Apache-2.0
"""Messages to a prompt, by the template that a checkpoint brings (Hugging Face's form), in Jinja's sandbox."""

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from clients.batch.line_error import LineError
from ensemble_configs.errors import SpecError

_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class ChatTemplate:
    """Of a folder with `chat_template.jinja` or `tokenizer_config.json`, or of a file that is the template.

    The server's tokenizer puts the begin token in front of every prompt itself (`tokenizer.add_special_tokens`, on by
    default), so one that the template begins with is taken off.

    Raises:
        SpecError: there is none, or it is not a template; or jinja2 is not installed.
    """

    def __init__(self, path: Path) -> None:
        source, self._tokens = _load(path)
        try:
            import jinja2.sandbox  # noqa: PLC0415  only jobs with messages need it
        except ModuleNotFoundError as exc:
            message = "--chat-template needs the Python package 'jinja2', which is not installed"
            raise SpecError(message, package="jinja2") from exc
        self._failure = jinja2.TemplateError
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value, **kwargs: json.dumps(value, ensure_ascii=False, **kwargs)
        environment.globals |= {"raise_exception": self._refuse, "strftime_now": _now}
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as exc:
            raise SpecError(f"--chat-template {path} is not a template: {exc}", file=path) from exc

    def render(self, messages: Sequence[dict[str, object]]) -> str:
        """The prompt that asks for the assistant's next message.

        Raises:
            LineError: the template refuses the messages.
        """
        try:
            text = self._template.render(messages=list(messages), add_generation_prompt=True, **self._tokens)
        except (self._failure, TypeError, ValueError, ArithmeticError, LookupError) as exc:
            message = f"body.messages: the chat template refuses them: {exc}"
            raise LineError(message, code="chat_template", param="body.messages") from exc
        return text.removeprefix(self._tokens.get("bos_token", ""))

    def _refuse(self, message: str) -> NoReturn:
        raise self._failure(message)


def without_template(_messages: Sequence[dict[str, object]]) -> str:
    """For a job that was given none.

    Raises:
        LineError: always.
    """
    raise LineError(
        "body.messages needs the model's chat template, and the server does not hand it out; name the checkpoint's "
        "folder or the template with --chat-template",
        code="no_chat_template",
        param="body.messages",
    )


def _load(path: Path) -> tuple[str, dict[str, str]]:
    """The template's text and the special tokens that it may name."""
    folder = path if path.is_dir() else path.parent
    try:
        config = folder / "tokenizer_config.json"
        fields = json.loads(config.read_text("utf-8")) if config.is_file() else {}
        named = path if path.is_file() and path.suffix != ".json" else folder / "chat_template.jinja"
        source = named.read_text("utf-8") if named.is_file() else _template_in(fields)
    except (OSError, ValueError) as exc:
        raise SpecError(f"--chat-template {path} cannot be read: {exc}", file=path) from exc
    if not source:
        raise SpecError(
            f"--chat-template {path} has no chat template; name a folder with chat_template.jinja, or with a "
            "tokenizer_config.json that has chat_template, or the template's file",
            file=path,
        )
    return source, {name: text for name in _TOKENS if (text := _token(fields.get(name)))}


def _template_in(fields: dict[str, object]) -> str:
    template = fields.get("chat_template")
    if isinstance(template, list):  # several by name
        template = next((one.get("template") for one in template if one.get("name") == "default"), None)
    return template if isinstance(template, str) else ""


def _token(value: object) -> str:
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else ""


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
