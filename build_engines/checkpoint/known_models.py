# SPDX-License-Identifier: Apache-2.0
"""Models that are known by name: each `config.json` is written by hand from what the publisher states."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

from build_engines.checkpoint.config_values import load_config
from trireme.base.errors import SpecError

_TABLE = Path(__file__).with_name("known_models.yaml")


class KnownModel(NamedTuple):
    """A known model; `num_parameters` is what its publisher's files hold."""

    config: dict[str, object]
    num_parameters: int


@cache
def known_models() -> dict[str, KnownModel]:
    """Return every known model by name."""
    table = yaml.safe_load(_TABLE.read_text(encoding="utf-8"))
    return {name: KnownModel(**facts) for name, facts in table.items()}


def config_of(name: str) -> dict[str, object]:
    """Return the `config.json` of a checkpoint folder, of a path to that file, or of a known model's name in any case.

    Raises:
        SpecError: the argument is none of these, or the file cannot be read.
    """
    path = Path(name)
    if path.exists():
        return load_config(path)
    known = known_models()
    if name.lower() in known:
        return known[name.lower()].config
    raise SpecError(
        f"model {name!r} is neither a folder or config.json here nor a known name; names are {', '.join(known)}",
        field="model",
        value=name,
    )
