# SPDX-License-Identifier: Apache-2.0
"""Sums as JSON's types, and back: arrays, and objects and lists of them; what is mostly zero is written sparsely."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from clients.rollout_gate.block_list import Block
from clients.rollout_gate.rows import Rows

_ITEMS: Mapping[str, Callable[..., Any]] = {"blocks": Block, "first": Rows}  # what the lists hold, tuples of arrays
_DENSE = 0.5  # share of zeros from which a sparse form is shorter


def written(value: object) -> Any:
    """Return sums in JSON's types."""
    match value:
        case np.ndarray() | np.generic():  # numpy makes numbers of arrays without dimensions
            return _written_array(np.asarray(value))
        case bool() | int() | float() | str() | None:
            return value
        case Mapping():
            return {str(name): written(each) for name, each in value.items()}
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
        read = found[name]
        match known:
            case np.ndarray() | np.generic():
                setattr(value, name, _read_array(read, known.dtype))
            case bool():
                setattr(value, name, bool(read))
            case list():
                setattr(value, name, [_ITEMS[name](*each) for each in _read_list(read)])
            case _:
                read_into(known, read)


def _written_list(items: Sequence[tuple[np.ndarray[Any, Any], ...]]) -> Any:
    """Return tuples of arrays by column, those of equal shapes together."""
    runs: list[list[tuple[np.ndarray[Any, Any], ...]]] = []
    for item in items:
        if runs and [each.shape for each in runs[-1][0]] == [each.shape for each in item]:
            runs[-1].append(item)
        else:
            runs.append([item])
    return [[_written_array(np.stack(column)) for column in zip(*run, strict=True)] for run in runs]


def _read_list(runs: Sequence[Sequence[Any]]) -> Iterator[tuple[np.ndarray[Any, Any], ...]]:
    for run in runs:
        yield from zip(*map(_read_array, run), strict=True)


def _written_array(value: np.ndarray[Any, Any]) -> Any:
    if value.size < 16 or np.count_nonzero(value) > _DENSE * value.size:
        return {"values": _plain(value.ravel()), "shape": list(value.shape), "kind": value.dtype.kind}
    at = np.flatnonzero(value)
    return {
        "at": at.tolist(),
        "values": _plain(value.ravel()[at]),
        "shape": list(value.shape),
        "kind": value.dtype.kind,
    }


def _plain(values: np.ndarray[Any, Any]) -> list[Any]:
    """Return values; JSON has no word for what is not finite."""
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return list(values.tolist())
    return [value if np.isfinite(value) else str(value) for value in values.tolist()]


_KINDS: Mapping[str, Any] = {"f": np.float64, "i": np.int64, "b": np.bool_}


def _read_array(found: Mapping[str, Any], dtype: Any = None) -> np.ndarray[Any, Any]:
    kind = _KINDS[found["kind"]] if dtype is None else dtype
    values: Sequence[Any] = found["values"]
    if kind == np.float64:
        values = [float(value) for value in values]
    if "at" not in found:
        return np.array(values, dtype=kind).reshape(found["shape"])
    whole = np.zeros(int(np.prod(found["shape"])), dtype=kind)
    whole[found["at"]] = values
    return whole.reshape(found["shape"])
