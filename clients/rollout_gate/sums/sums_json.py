# SPDX-License-Identifier: Apache-2.0
"""Sums as JSON's types, and back: arrays, and objects and lists of them.

What is mostly zero is written sparsely; of objects by name, those that are empty are not written.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from clients.rollout_gate.statistics.rows import Rows
from clients.rollout_gate.sums.block_list import Block, Scale

# What the lists hold: tuples of arrays.
_ITEMS: Mapping[str, Callable[..., Any]] = {"blocks": Block, "open": Block, "finer": Scale, "first": Rows}
_KINDS: Mapping[str, Any] = {"f": np.float64, "i": np.int64, "b": np.bool_}
_DENSE = 0.5  # share of zeros from which a sparse form is shorter

Array = np.ndarray[Any, Any]


def written(value: object) -> Any:
    """Return sums in JSON's types."""
    match value:
        case np.ndarray() | np.generic():  # numpy makes numbers of arrays without dimensions
            return _written_array(np.asarray(value))
        case bool() | int() | float() | str() | None:
            return value
        case Mapping():
            return {str(name): written(each) for name, each in value.items() if not getattr(each, "is_empty", False)}
        case list():
            return _written_list(value)
    return {name: written(each) for name, each in vars(value).items() if not name.startswith("_")}


def read_into(value: Any, found: Mapping[str, Any]) -> None:
    """Fill sums, new ones of the same settings, with what `written` returned.

    Raises:
        KeyError, ValueError, TypeError: it returned something else.
    """
    for name, known in (value if isinstance(value, Mapping) else vars(value)).items():
        if str(name).startswith("_"):
            continue
        if name not in found and getattr(known, "is_empty", False):
            continue
        read = found[name]
        match known:
            case np.ndarray() | np.generic():
                setattr(value, name, _read_array(read, np.asarray(known)))
            case bool() | float():
                setattr(value, name, type(known)(read))
            case None:
                pass
            case list():
                setattr(value, name, [_ITEMS[name](*each) for each in _read_list(read)])
            case _:
                read_into(known, read)


def _written_list(items: Sequence[tuple[Array, ...]]) -> Any:
    """Return tuples of arrays by column, those of equal shapes together."""
    runs: list[list[tuple[Array, ...]]] = []
    for item in items:
        if runs and [each.shape for each in runs[-1][0]] == [each.shape for each in item]:
            runs[-1].append(item)
        else:
            runs.append([item])
    columns = [[np.stack(column) for column in zip(*run, strict=True)] for run in runs]
    return [[[each.dtype.kind, list(each.shape), _plain(each)] for each in run] for run in columns]


def _read_list(runs: Sequence[Sequence[Any]]) -> Iterator[tuple[Array, ...]]:
    for run in runs:
        columns = [np.array(values, dtype=_KINDS[kind]).reshape(shape) for kind, shape, values in run]
        yield from zip(*columns, strict=True)


def _written_array(value: Array) -> Any:
    if value.size < 16 or np.count_nonzero(value) > _DENSE * value.size:
        return _plain(value)
    at = np.flatnonzero(value)
    nonzero = {"at": at.tolist(), "values": _plain(value.ravel()[at])} if at.size else {}
    return {"size": value.size, **nonzero}


def _read_array(found: Any, known: Array) -> Array:
    if not isinstance(found, Mapping):
        return np.array(found, dtype=known.dtype).reshape(known.shape)
    if found["size"] != known.size:
        raise ValueError(f"an array has {found['size']} values, and {known.size} were expected")
    whole = np.zeros(known.size, dtype=known.dtype)
    whole[found.get("at", [])] = np.array(found.get("values", []), dtype=known.dtype)
    return whole.reshape(known.shape)


def _plain(values: Array) -> list[Any]:
    """Return values one after the other, whole ones without a point; JSON has no word for what is not finite."""
    if values.dtype.kind != "f":
        return list(values.ravel().tolist())
    return [_plain_number(value) for value in values.ravel().tolist()]


def _plain_number(value: float) -> float | int | str:
    if not math.isfinite(value):
        return str(value)
    return int(value) if value.is_integer() else value
