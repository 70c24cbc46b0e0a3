# SPDX-License-Identifier: Apache-2.0
"""The base of all parts of a deployment: frozen, checked, with paths relative to the file that names them."""

import math
import re
from pathlib import Path
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationInfo,
    field_validator,
)

_MAX_COUNT = 2**31 - 1  # Triton and TensorRT-LLM hold most numbers in 32 bits
_MAX_INTEGER = 2**63 - 1  # what JSON and messages between processes carry


def _not_a_truth_value(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("input should be a valid number, not true or false")  # noqa: TRY004 - pydantic asks for it
    return value


def _finite(value: float) -> float:
    if not math.isfinite(value):  # nothing is endless here, and JSON has no word for it
        raise ValueError("input should be a finite number")
    return value


def _storable(value: int) -> int:
    if abs(value) > _MAX_INTEGER:
        raise ValueError(f"input should be at most {_MAX_INTEGER} either way")
    return value


def _countable(value: int) -> int:
    if value > _MAX_COUNT:
        raise ValueError(f"input should be at most {_MAX_COUNT}")
    return value


# The bounds that all have are validators: of two `le`, one of the type and one of the field, pydantic forgets one.
# What is written as 1, 'true' or '128' was meant as something else, or comes of a template that was filled wrongly.
Boolean = Annotated[bool, Strict()]
Integer = Annotated[int, Strict(), AfterValidator(_storable)]
Port = Annotated[Integer, Field(ge=1, le=65535)]
Positive = Annotated[Integer, Field(ge=1), AfterValidator(_countable)]
NotNegative = Annotated[Integer, Field(ge=0), AfterValidator(_countable)]
PositiveSize = Annotated[Integer, Field(ge=1)]  # bytes and parameters
# Not strict: YAML takes 1e-3, without a point, for a string.
Number = Annotated[float, BeforeValidator(_not_a_truth_value), AfterValidator(_finite)]
_NAME_PATTERN = r"^[a-z][a-z0-9_]*$"
_MAX_NAME_LEN = 64
Name = Annotated[str, Field(pattern=_NAME_PATTERN, max_length=_MAX_NAME_LEN)]
Location = tuple[str | int, ...]  # of a value in the data, as pydantic has it


def is_name(value: object) -> bool:
    """Return whether a value is a valid `Name`."""
    return isinstance(value, str) and len(value) <= _MAX_NAME_LEN and re.fullmatch(_NAME_PATTERN, value) is not None


class Spec(BaseModel):
    """A frozen model that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="after")
    @classmethod
    def _resolve_paths(cls, value: object, info: ValidationInfo) -> object:
        # Relative paths are meant from the file that names them, wherever the command is run.
        base = (info.context or {}).get("base_dir")
        return (base / value).resolve() if base is not None and isinstance(value, Path) else value

    def shown_value(self, field: str) -> str:
        """Return a field's value for a message, with a note if it is the default because nobody wrote it."""
        value = getattr(self, field)
        return str(value) if field in self.model_fields_set else f"{value}, the default: the deployment does not set it"

    @classmethod
    def shown_location(cls, location: Location, data: object) -> Location:
        """Return where a person finds what is wrong at `location`, if the spec rearranges `data` before its check."""
        del data
        return location
