# SPDX-License-Identifier: Apache-2.0
"""The check of what the options of `trireme gateway keys` ask for."""

import re

from gateway.access.api_key import KEY_ID, PREFIX, holds_a_key
from gateway.access.caller import Role
from gateway.access.key_record import NewKey
from gateway.limits.key_limits import NO_LIMITS, KeyLimits
from trireme.base.errors import RequestError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._@-]{0,63}")
_TENANT = re.compile(r"[A-Za-z0-9._:@/-]{0,128}")
_MODEL = re.compile(r"[A-Za-z0-9._:/-]{1,64}")
_MAX_MODELS = 100
_DURATION = re.compile(r"(?P<count>[0-9]{1,9})(?P<unit>[mhdw])")
_UNITS_S = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_LONGEST_S = 3650 * 86_400


def new_key_of(
    name: str,
    *,
    tenant: str,
    role: Role,
    models: str | None,
    expires: str | None,
    now_s: float,
    limits: KeyLimits = NO_LIMITS,
) -> NewKey:
    """Return the wish for a key that options spell out.

    Args:
        models: names with commas between them; None: all.
        expires: time from now, such as 90d; None: never.

    Raises:
        RequestError: an option is wrong.
    """
    if not _NAME.fullmatch(name) or holds_a_key(name):
        raise RequestError(
            f"NAME must be a letter and then letters, digits, '.', '_', '@' and '-', at most 64, got {_shown(name)}",
            field="name",
        )
    if not _TENANT.fullmatch(tenant) or holds_a_key(tenant):
        raise RequestError(
            "--tenant must be letters, digits, '.', '_', ':', '@', '/' and '-', at most 128, got " + _shown(tenant),
            field="tenant",
        )
    expires_at_s = None if expires is None else int(now_s) + seconds_of(expires)
    return NewKey(name, tenant, role, None if models is None else _models_of(models), expires_at_s, limits)


def seconds_of(expires: str) -> int:
    """Return how many seconds `--expires` says.

    Raises:
        RequestError: it is no time, none at all, or more than ten years.
    """
    found = _DURATION.fullmatch(expires)
    seconds = int(found["count"]) * _UNITS_S[found["unit"]] if found else 0
    if not 0 < seconds <= _LONGEST_S:
        raise RequestError(
            f"--expires must be a number with m, h, d or w, such as 12h or 90d, and at most 3650d, got "
            f"{_shown(expires)}; leave it out for a key that never expires",
            field="expires",
        )
    return seconds


def _models_of(text: str) -> frozenset[str]:
    names = [name.strip() for name in text.split(",")]
    wrong = [name for name in names if not _MODEL.fullmatch(name) or holds_a_key(name)]
    if wrong or len(names) > _MAX_MODELS:
        raise RequestError(
            f"--models must be names of models with commas between them, at most {_MAX_MODELS}, got "
            f"{_shown(wrong[0]) if wrong else len(names)}; leave it out for all models",
            field="models",
        )
    return frozenset(names)


def key_named(text: str) -> str:
    """Return the id or name of a key on the command line.

    Raises:
        RequestError: it is a whole key, which has no place in a command, or nothing that an id or a name can be.
    """
    if holds_a_key(text):
        raise RequestError(
            "ID_OR_NAME must be the id or the name of a key, not the key: lists of processes and the shell's history "
            f"show it; the id is the part between {PREFIX} and the next '-'",
            field="key",
        )
    if not KEY_ID.fullmatch(text) and not _NAME.fullmatch(text):
        raise RequestError(
            f"ID_OR_NAME must be an id or a name that `trireme gateway keys list` shows, got {_shown(text)}",
            field="key",
        )
    return text


def _shown(text: str) -> str:
    """Return a value as a message shows it; what may be a key is not shown."""
    return "what looks like a key" if holds_a_key(text) else repr(text[:64])
