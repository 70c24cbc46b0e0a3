# SPDX-License-Identifier: Apache-2.0
"""The ids of tool calls, which a client sends back with the results."""

import secrets
import string

_ALPHANUMERIC = string.ascii_letters + string.digits


def new_call_id() -> str:
    """Return an id in OpenAI's form: `call_` and 24 URL-safe characters."""
    return f"call_{secrets.token_urlsafe(18)}"


def new_mistral_call_id() -> str:
    """Return an id of nine letters and digits.

    Source: Mistral's chat templates (7B Instruct v0.3, Nemo) refuse messages whose calls have an id of another length.
    """
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))
