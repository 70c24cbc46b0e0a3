# SPDX-License-Identifier: Apache-2.0
"""What all parts of a deployment have in common: frozen, checked, paths meant from the file that names them."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Port = Annotated[int, Field(ge=1, le=65535)]
Positive = Annotated[int, Field(ge=1)]


class Spec(BaseModel):
    """Frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="after")
    @classmethod
    def _resolve_paths(cls, value: object, info: ValidationInfo) -> object:
        # Relative paths are meant from the file that names them, wherever the command is run.
        base = (info.context or {}).get("base_dir")
        return (base / value).resolve() if base is not None and isinstance(value, Path) else value
