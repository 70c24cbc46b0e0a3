# SPDX-License-Identifier: Apache-2.0
"""The token ids of chat messages, by the release's own template; no text of a message becomes a control token."""

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ensemble_configs.chat.chat_messages import ROLES, ChatMessage, Tools, without_nulls
from ensemble_configs.chat.chat_template import FIELD, ChatTemplate, load_chat_template
from serving.text.special_texts import longest_of
from serving.text.text_limits import TextLimit
from serving.text.tokenization import PromptTokenizer
from trireme.base.errors import RequestError, SpecError
from trireme.base.known_types import known

_log = logging.getLogger("trireme.chat_prompt")

TOOLS = "tools"
Message = dict[str, object]

# Noncharacters of Unicode, meant for a program's own use; a request may hold some of them nevertheless.
_MARKS = tuple(map(chr, range(0xFDD0, 0xFDF0)))
_ESCAPED_BYTES = 6  # of a character of one byte, as \\u0041
_MESSAGE_BYTES = 64  # around the text of a message: {"role": "assistant", "content": ""}, its name, a comma, a line end
_NONE = "the release has no chat template; send text_input, or build the release from a checkpoint that has one"


class ChatPrompt:
    """The chat template and the tokenizer of one release; shared by all requests and threads.

    A template is full of special tokens (`<|im_end|>`), and the tokenizer makes a token of the same text anywhere. In
    the messages themselves such text stays text: its author cannot end a turn, or speak as the system.
    """

    def __init__(self, template: ChatTemplate | None, tokenizer: PromptTokenizer, *, why_none: str = _NONE) -> None:
        """Set up one release's chat prompts; call before the tokenizer is in use by other threads.

        Args:
            template: chat template; None: every request is refused.
            tokenizer: tokenizer of the release.
            why_none: reason and next step for the error, where there is no template.
        """
        self._template = template
        self._tokenizer = tokenizer
        self._why_none = why_none
        self._text_ids = list(tokenizer.special_texts().items()) if template is not None else []
        self._special = longest_of(text for text, _ in self._text_ids)
        self._numbers = {text: number for number, (text, _) in enumerate(self._text_ids)}

    @classmethod
    def from_folder(cls, folder: Path, tokenizer: PromptTokenizer) -> "ChatPrompt":
        """Load the template of a tokenizer's folder; a missing or broken template fails the requests that need it."""
        try:
            template = load_chat_template(folder)
        except SpecError as exc:
            _log.warning("requests with %s will be refused: %s", FIELD, exc.message)
            return cls(None, tokenizer, why_none=f"{exc.message}; send text_input")
        return cls(template, tokenizer)

    def encode(self, raw: bytes, raw_tools: bytes = b"") -> NDArray[np.int32]:
        """Return the ids of a conversation, ``[num_tokens] int32``.

        Args:
            raw: JSON, a list of messages in OpenAI's form.
            raw_tools: JSON, a list of tools in OpenAI's form; empty: there are none.

        Raises:
            RequestError: there is no template, the template does not take the messages or no tools, or they are more
                than the engine takes.
        """
        try:
            return self._encode(raw, raw_tools)
        except RecursionError as exc:
            raise RequestError(f"{FIELD} or {TOOLS} are nested too deep; send flatter ones", field=FIELD) from exc

    def _encode(self, raw: bytes, raw_tools: bytes) -> NDArray[np.int32]:
        if self._template is None:
            raise RequestError(f"{FIELD} cannot be rendered: {self._why_none}", field=FIELD, reason="no_chat_template")
        limit = self._tokenizer.limit
        if limit is not None:
            _check_json(raw, limit, FIELD)
            _check_json(raw_tools, limit, TOOLS)
        messages = parse_messages(raw)
        tools = parse_tools(raw_tools)
        if tools and not self._template.takes_tools:
            raise RequestError(f"{TOOLS} cannot be offered: the model's chat template has none; leave them out",
                               field=TOOLS, reason="no_tools")  # fmt: skip
        if limit is not None:
            _check_size(messages, tools, limit)
        mark = _unused_mark(_texts_in([messages, tools]))
        masked, masked_tools = self._masked(messages, mark), self._masked(tools, mark)
        ids = self._ids(self._template.render(masked, masked_tools), mark)
        if not ids:
            raise RequestError(f"{FIELD} give no tokens; send a message with content", field=FIELD)
        return np.array(ids, dtype=np.int32)

    def _masked(self, value: Any, mark: str) -> Any:
        """Return a text with a marked number in place of each special token's; lists and objects with such texts."""
        if isinstance(value, str):
            return self._special.sub(lambda found: f"{mark}{self._numbers[found[0]]}{mark}", value)
        if isinstance(value, list):
            return [self._masked(item, mark) for item in value]
        if isinstance(value, dict):
            return {self._masked(key, mark): self._masked(item, mark) for key, item in value.items()}
        return value

    def _ids(self, rendered: str, mark: str) -> list[int]:
        """Return the ids of the rendered text; the template itself writes the begin token where the model needs it."""
        limit = self._tokenizer.limit
        ids: list[int] = []
        for index, piece in enumerate(re.split(f"{mark}([0-9]+){mark}", rendered)):
            ids += self._text_ids[int(piece)][1] if index % 2 else self._tokenizer.encode_piece(piece, field=FIELD)
            if limit is not None and len(ids) > limit.max_tokens:
                limit.refuse_tokens(len(ids), FIELD)
        return ids


def _check_json(raw: bytes, limit: TextLimit, field: str) -> None:
    """Refuse JSON larger than the longest prompt can be, written in escapes and with one message for each token.

    The parser holds the GIL, and needs 0.3 s for a million messages. Within a text this key has other quotation marks.
    """
    most = limit.max_bytes * _ESCAPED_BYTES + limit.max_tokens * _MESSAGE_BYTES
    if len(raw) > most:
        message = f"{field} have {len(raw)} bytes of JSON; send at most {most}"
        raise RequestError(message, field=field, value=len(raw), max=most)
    if field == FIELD:
        _check_number(raw.count(b'"role"'), limit)


def _check_number(num_messages: int, limit: TextLimit) -> None:
    if num_messages > limit.max_tokens:
        raise RequestError(
            f"{FIELD} are {num_messages}; send at most {limit.max_tokens}: prompt and output together may have "
            f"{limit.max_seq_len} tokens",
            field=FIELD,
            value=num_messages,
            max=limit.max_tokens,
        )


def _check_size(messages: Sequence[Message], tools: Sequence[Message], limit: TextLimit) -> None:
    """Refuse messages that are too many or too long for a prompt, before a slow template is rendered with them."""
    _check_number(len(messages), limit)
    num_bytes = 0
    for field, each in ((FIELD, messages), (TOOLS, tools)):
        for index, one in enumerate(each):
            try:
                num_bytes += sum(len(text.encode()) for text in _texts_in(one))
            except UnicodeEncodeError as exc:
                path = f"{field}[{index}]"
                raise RequestError(f"{path} has half a surrogate pair; send valid Unicode", field=path) from exc
    limit.check_bytes(num_bytes, FIELD)


def parse_messages(raw: bytes) -> list[Message]:
    """Return the messages of a request as templates expect them.

    A null counts as absent, because OpenAI's clients send what they have got.

    Raises:
        RequestError: the text is not JSON, no list of messages, or has a part that models of text cannot read; the path
            names the part.
    """
    data = _decoded(raw, FIELD)
    if isinstance(data, list):
        data = [without_nulls(message) for message in data]
    messages = _converted(data, list[ChatMessage], FIELD)
    if not messages:
        raise RequestError(f"{FIELD} is an empty list; send at least one message", field=FIELD)
    found = []
    for index, message in enumerate(messages):
        path = f"{FIELD}[{index}]"
        _check_role(message.role, f"{path}.role")
        try:
            found.append(message.for_template())
        except ValueError as exc:
            raise RequestError(f"{path}.tool_calls: {exc}", field=f"{path}.tool_calls") from exc
    return found


def parse_tools(raw: bytes) -> list[Message]:
    """Return the tools of a request as templates expect them.

    Raises:
        RequestError: the text is not JSON, or no list of tools; the path names what is wrong.
    """
    if not raw:
        return []
    tools = _converted(_decoded(raw, TOOLS), Tools, TOOLS)
    return [msgspec.to_builtins(tool) for tool in tools]


def _decoded(raw: bytes, field: str) -> object:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise RequestError(f"{field} must be JSON, a list of {field}: {exc}", field=field) from exc


def _converted(data: object, kind: Any, field: str) -> Any:
    try:
        return msgspec.convert(data, known(kind))
    except msgspec.ValidationError as exc:
        reason, _, path = str(exc).partition(" - at `$")
        path = field + path.rstrip("`")
        raise RequestError(f"{path}: {reason[:1].lower()}{reason[1:]}", field=path) from exc


def _texts_in(value: object) -> Iterator[str]:
    """Yield every text in lists and objects, names of fields included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts_in(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts_in(item)


def _check_role(role: str, field: str) -> None:
    """Refuse roles that a client made up: templates build control tokens from the word."""
    if role not in ROLES:
        raise RequestError(f"{field} ({role[:32]!r}) must be one of {', '.join(ROLES)}", field=field)


def _unused_mark(texts: Iterable[str]) -> str:
    """Return a character that none of the texts has."""
    all_texts = "".join(texts)
    mark = next((mark for mark in _MARKS if mark not in all_texts), None)
    if mark is None:
        message = f"{FIELD} use all of the noncharacters U+FDD0 to U+FDEF; leave one of them out"
        raise RequestError(message, field=FIELD)
    return mark
