# SPDX-License-Identifier: Apache-2.0
"""Models that are known by name: their `config.json` written by hand from what their publishers state."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

_TABLE = Path(__file__).with_name("known_models.yaml")


class KnownModel(NamedTuple):
    """One model; `num_parameters` is what its publisher's files hold."""

    config: dict[str, object]
    num_parameters: int


@cache
def known_models() -> dict[str, KnownModel]:
    """By name."""
    table = yaml.safe_load(_TABLE.read_text(encoding="utf-8"))
    return {name: KnownModel(**facts) for name, facts in table.items()}
