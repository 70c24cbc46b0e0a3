# SPDX-License-Identifier: Apache-2.0
"""The chat template that a checkpoint brings (Hugging Face's form): messages to a prompt's text, in Jinja's sandbox.

The server renders with the release's own template, and a client with the one that the client is given.
"""

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from trireme.base.errors import RequestError, SpecError

_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
_TOOLS = re.compile(r"\btools\b")
FIELD = "messages"


class ChatTemplate:
    """A compiled template and the special tokens that the template may name."""

    def __init__(self, source: str, tokens: Mapping[str, str], *, file: Path) -> None:
        """Compile a template.

        Args:
            source: the template's text.
            tokens: the texts of `bos_token`, `eos_token` and so on.
            file: where the template was found, for messages.

        Raises:
            SpecError: the text is no template, or jinja2 is not installed.
        """
        try:
            import jinja2.sandbox  # noqa: PLC0415  a client without chat lines does without it

            from ensemble_configs.chat.chat_template_syntax import GenerationMarks  # noqa: PLC0415
        except ModuleNotFoundError as exc:
            message = "a chat template needs the Python package 'jinja2', which is not installed"
            raise SpecError(message, package="jinja2") from exc
        self.source = source
        self._tokens = dict(tokens)
        self._failure = jinja2.TemplateError
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationMarks]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": self._refuse, "strftime_now": _now}
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as exc:
            raise SpecError(f"{file} is not a template: {exc}", file=file) from exc

    @property
    def bos_token(self) -> str:
        """Return the text of the begin token; "" where the folder names none."""
        return self._tokens.get("bos_token", "")

    @property
    def takes_tools(self) -> bool:
        """Return whether the template does something with tools."""
        return _TOOLS.search(self.source) is not None

    def render(
        self, messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]] | None = None
    ) -> str:
        """Return the prompt that asks for the assistant's next message.

        Args:
            tools: that the assistant may call, in OpenAI's form.

        Raises:
            RequestError: the template refuses the messages.
        """
        given = {"messages": list(messages), "tools": tools or None}  # templates ask whether it is none
        try:
            return self._template.render(**given, add_generation_prompt=True, **self._tokens)
        except (self._failure, TypeError, ValueError, ArithmeticError, LookupError) as exc:
            reason = " ".join(str(exc).split())
            raise RequestError(f"{FIELD}: the model's chat template refuses them: {reason}", field=FIELD) from exc

    def _refuse(self, message: str) -> NoReturn:
        raise self._failure(message)


def load_chat_template(path: Path) -> ChatTemplate | None:
    """Return the template of a checkpoint's folder, or of a file that is a template; None where there is none.

    In a folder `chat_template.jinja` goes before `chat_template.json` and `tokenizer_config.json`.

    Raises:
        SpecError: a file cannot be read or is not JSON, or the text is no template.
    """
    if not path.exists():
        return None
    folder = path if path.is_dir() else path.parent
    try:
        fields = _fields(folder / "tokenizer_config.json")
        found = _find(path, folder, fields)
    except (OSError, ValueError) as exc:
        raise SpecError(f"the chat template of {path} cannot be read: {exc}", file=path) from exc
    if found is None:
        return None
    file, source = found
    return ChatTemplate(source, {name: text for name in _TOKENS if (text := _token(fields.get(name)))}, file=file)


def _find(path: Path, folder: Path, fields: Mapping[str, object]) -> tuple[Path, str] | None:
    """Return the file that holds the template, and the template's text; None where there is none."""
    named = path if path.is_file() and path.suffix != ".json" else folder / "chat_template.jinja"
    if named.is_file():
        return named, named.read_text("utf-8")
    for file, content in (
        (folder / "chat_template.json", _fields(folder / "chat_template.json")),
        (folder / "tokenizer_config.json", fields),
    ):
        if source := _template_in(content):
            return file, source
    return None


def _fields(file: Path) -> dict[str, object]:
    content: object = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    if not isinstance(content, dict):
        raise ValueError(f"{file.name} holds {type(content).__name__} where an object is expected")  # noqa: TRY004  of the file
    return content


def _template_in(fields: Mapping[str, object]) -> str:
    template = fields.get("chat_template")
    if isinstance(template, list):  # several by name
        template = next((one.get("template") for one in template if one.get("name") == "default"), None)
    return template if isinstance(template, str) else ""


def _token(value: object) -> str:
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else ""


def _to_json(value: object, **options: Any) -> str:
    """Return JSON that is not escaped for HTML, as Jinja's own filter would: a prompt is no HTML."""
    return json.dumps(value, ensure_ascii=False, **options)


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
