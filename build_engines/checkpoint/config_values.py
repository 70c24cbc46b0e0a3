# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face `config.json` as a file and as values, each checked for its type and range.

What the values mean for a model is left to `build_engines.checkpoint.checkpoint_config`.
"""

import json
import stat
from collections.abc import Mapping
from pathlib import Path

from trireme.base.errors import SpecError

_MOST_BYTES = 16 * 2**20  # published ones have some KiB

# A list as long as these is made here, and a config may come from anywhere.
_LISTED = frozenset({"num_hidden_layers", "n_layer", "num_experts", "num_local_experts", "n_routed_experts"})
_MOST_LISTED = 10_000
_MOST = 10**12  # of all others: far above any model's, and products of them are still within a float


def load_config(checkpoint: Path) -> dict[str, object]:
    """Return the `config.json` of a checkpoint folder, or of a path to the file itself.

    Raises:
        SpecError: the file is no plain file of at most 16 MiB, cannot be read or does not hold an object.
    """
    path = checkpoint / "config.json" if checkpoint.is_dir() else checkpoint
    try:
        config = json.loads(_read_plain_file(path))
    except OSError as exc:
        raise SpecError(
            f"cannot read {path}: {exc.strerror}; name a checkpoint's folder or its config.json", file=path
        ) from exc
    except (ValueError, RecursionError) as exc:
        raise SpecError(f"{path} is not JSON: {exc}", file=path) from exc
    if not isinstance(config, dict):
        raise SpecError(f"{path} holds no object of keys and values", file=path)
    return config


def _read_plain_file(path: Path) -> bytes:
    """Return a file's bytes; refuse a pipe, which would block, and a device, which may never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise SpecError(f"{path} is not a plain file; name a checkpoint's folder or its config.json", file=path)
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise SpecError(
            f"{path} is larger than {_MOST_BYTES // 2**20} MiB, which no config.json is; name a checkpoint's folder or "
            "its config.json",
            file=path,
        )
    return content


class ConfigValues:
    """Values of a `config.json` by name, each of the type that it should have.

    `within` stands before names in messages: the values are of an object within the config.
    """

    def __init__(self, values: Mapping[str, object], source: str, within: str = "") -> None:
        self._values = values
        self._source = source
        self._within = within

    def count(self, *names: str) -> int:
        """Return a required whole number above 0, by the first of its names that is there."""
        value = self.count_if_given(*names)
        if value is None:
            name = self._within + names[0]
            raise SpecError(f"{self._source}: {name} is missing", file=self._source, field=name)
        return value

    def count_if_given(self, *names: str) -> int | None:
        """Return a whole number above 0, or None where no name is there or the value is null."""
        value = self.optional_count(*names)
        for name in names:
            if value is None and self._values.get(name) is not None:
                raise self.wrong(name, 0, "a whole number, at least 1")
        return value

    def optional_count(self, *names: str) -> int | None:
        """Return a whole number above 0, or None where no name is there or the value is null or 0."""
        for name in names:
            value = self._values.get(name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise self.wrong(name, value, "a whole number, at least 0")
            most = _MOST_LISTED if name in _LISTED else _MOST
            if value > most:
                raise self.wrong(name, value, f"at most {most:,}")
            return value or None
        return None

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a flag, or `default` where the name is missing or null."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def text(self, name: str) -> str | None:
        """Return a string, or None where there is none."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, str):
            raise self.wrong(name, value, "a string")
        return value

    def whole_numbers(self, name: str) -> list[int] | None:
        """Return a list of whole numbers, or None where there is none."""
        value = self._values.get(name)
        if value is None:
            return None
        if (
            not isinstance(value, list)
            or len(value) > _MOST_LISTED
            or not all(isinstance(one, int) and not isinstance(one, bool) for one in value)
        ):
            raise self.wrong(name, value, f"a list of at most {_MOST_LISTED:,} whole numbers")
        return value

    def layer_types(self, num_layers: int, *known: str) -> list[str] | None:
        """Return the kind of each layer, one of `known`, or None where the config does not say."""
        value = self._values.get("layer_types")
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != num_layers or any(kind not in known for kind in value):
            raise self.wrong("layer_types", value, f"{num_layers} of {' or '.join(known)}")
        return value

    def divide(self, numerator: int, denominator: int, names: str) -> int:
        """Return a quotient that must be whole."""
        if numerator % denominator:
            raise SpecError(
                f"{self._source}: {names} ({numerator} / {denominator}) is not a whole number", file=self._source
            )
        return numerator // denominator

    def wrong(self, name: str, value: object, allowed: str) -> SpecError:
        """Return the error that names a value, what it is and what it may be."""
        name = self._within + name
        return SpecError(
            f"{self._source}: {name} must be {allowed}; got {value!r}", file=self._source, field=name, value=value
        )
