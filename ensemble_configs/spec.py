# SPDX-License-Identifier: Apache-2.0
"""What all parts of a deployment have in common: frozen, checked, paths meant from the file that names them."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, ValidationInfo, field_validator


def _not_a_truth_value(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("input should be a valid number, not true or false")  # noqa: TRY004 - pydantic asks for it
    return value


# What is written as true or '128' was meant as something else, or comes of a template that was filled wrongly.
Integer = Annotated[int, Strict()]
Port = Annotated[Integer, Field(ge=1, le=65535)]
Positive = Annotated[Integer, Field(ge=1)]
# Not strict: YAML takes 1e-3, without a point, for a string.
Number = Annotated[float, BeforeValidator(_not_a_truth_value)]
_NAME_PATTERN = r"^[a-z][a-z0-9_]*$"
_MAX_NAME_LEN = 64
Name = Annotated[str, Field(pattern=_NAME_PATTERN, max_length=_MAX_NAME_LEN)]
Location = tuple[str | int, ...]  # of a value in the data, as pydantic has it


def is_name(value: object) -> bool:
    """Whether a `Name` may be called so."""
    return isinstance(value, str) and len(value) <= _MAX_NAME_LEN and re.fullmatch(_NAME_PATTERN, value) is not None


class Spec(BaseModel):
    """Frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="after")
    @classmethod
    def _resolve_paths(cls, value: object, info: ValidationInfo) -> object:
        # Relative paths are meant from the file that names them, wherever the command is run.
        base = (info.context or {}).get("base_dir")
        return (base / value).resolve() if base is not None and isinstance(value, Path) else value

    @classmethod
    def shown_location(cls, location: Location, data: object) -> Location:
        """Where a person finds what is wrong at `location`, if the spec rearranges `data` before it is checked."""
        del data
        return location
