# SPDX-License-Identifier: Apache-2.0
"""The scheduling of a request: its priority class, its tenant, and how long it may take."""

import enum
from typing import Annotated

import msgspec

from trireme.base.errors import RequestError

_MAX_TENANT_CHARS = 128


class Priority(enum.IntEnum):
    """The priority classes, by Triton's numbers: 1 is the highest."""

    PREMIUM = 1
    STANDARD = 2
    BATCH = 3


class Scheduling(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduling fields of a request, for admission (`serving.admission`); an engine may keep tenants apart."""

    priority: Annotated[int, msgspec.Meta(ge=1, le=len(Priority))] = Priority.STANDARD
    tenant: str = ""
    deadline_ms: Annotated[float, msgspec.Meta(ge=1)] | None = None  # from arrival to the last token
    queue_timeout_ms: Annotated[float, msgspec.Meta(ge=1)] | None = None  # from arrival to its start


def tenant_name(raw: object) -> str:
    """Return the tenant that a tensor or a parameter names.

    Raises:
        RequestError: the name is not text, or too long to be kept for every request.
    """
    try:
        name = raw.decode("utf-8") if isinstance(raw, bytes) else str(raw)
        name.encode("utf-8")  # JSON may hold half of a character
    except UnicodeError as exc:
        raise RequestError("tenant must be UTF-8 text", field="tenant") from exc
    if len(name) > _MAX_TENANT_CHARS:
        raise RequestError(
            f"tenant has {len(name)} characters, and may have {_MAX_TENANT_CHARS}; send a shorter name",
            field="tenant",
            max=_MAX_TENANT_CHARS,
        )
    return name
