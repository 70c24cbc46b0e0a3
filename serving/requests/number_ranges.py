# SPDX-License-Identifier: Apache-2.0
"""The limits of numbers in a request, read from the annotations of the structs that hold the numbers."""

import math
from collections.abc import Mapping
from typing import Annotated, get_args, get_origin, get_type_hints

import msgspec

from trireme.base.errors import RequestError


def ranges_of(struct: type[msgspec.Struct]) -> dict[str, msgspec.Meta]:
    """Return the limits of every number among a struct's fields, by field."""
    found = {}
    for field, hint in get_type_hints(struct, include_extras=True).items():
        for part in (hint, *get_args(hint)):  # also within `X | None` and `tuple[X, ...]`
            for meta in get_args(part) if get_origin(part) is Annotated else ():
                if isinstance(meta, msgspec.Meta):
                    found[field] = meta
    return found


def check_range(field: str, value: object, ranges: Mapping[str, msgspec.Meta]) -> None:
    """Check a number, or each number of a tuple; any other value passes.

    Args:
        field: field of the value.
        value: value as sent.
        ranges: limits by field (`ranges_of`); a field without limits may be any finite number.

    Raises:
        RequestError: a number is not finite, or outside its limits.
    """
    if isinstance(value, tuple):
        for item in value:
            check_range(field, item, ranges)
    if not isinstance(value, int | float):
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise out_of_range(field, value, "a finite number")
    limits = ranges.get(field)
    if limits is not None and not _is_inside(value, limits):
        raise out_of_range(field, value, _in_words(limits))


def out_of_range(field: str, value: object, allowed: str) -> RequestError:
    """Return the refusal of a value, with the allowed values in words."""
    return RequestError(f"{field} must be {allowed}; got {value}", field=field, value=value)


def _is_inside(value: float, limits: msgspec.Meta) -> bool:
    return (
        (limits.ge is None or value >= limits.ge)
        and (limits.gt is None or value > limits.gt)
        and (limits.le is None or value <= limits.le)
        and (limits.lt is None or value < limits.lt)
    )


def _in_words(limits: msgspec.Meta) -> str:
    if limits.ge is not None and limits.le is not None:
        return f"{limits.ge:g} to {limits.le:g}"
    words = (("at least", limits.ge), ("above", limits.gt), ("at most", limits.le), ("below", limits.lt))
    return " and ".join(f"{word} {limit:g}" for word, limit in words if limit is not None)
