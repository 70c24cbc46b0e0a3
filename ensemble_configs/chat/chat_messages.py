# SPDX-License-Identifier: Apache-2.0
"""Chat messages in OpenAI's form, as far as models of text alone can read them."""

import msgspec

ROLES = ("system", "developer", "user", "assistant", "tool")  # OpenAI's; `function` went before `tool`


class TextPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """A part of a message's content; there is no other type than text."""

    text: str


class ChatMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A message of a conversation: its role and its content."""

    role: str
    content: str | list[TextPart]
    name: str | None = None

    def for_template(self) -> dict[str, object]:
        """Return the message as templates expect it: its content one text."""
        parts = self.content
        content = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        named = {} if self.name is None else {"name": self.name}
        return {"role": self.role, "content": content, **named}
