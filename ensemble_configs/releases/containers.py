# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's containers with Triton and TensorRT-LLM, and what is in them, as `containers.yaml` has it."""

from datetime import date
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field

from ensemble_configs.spec.base import Spec
from ensemble_configs.spec.validation import validate

_CONTAINERS = Path(__file__).with_name("containers.yaml")


class Container(Spec):
    """Container tags with the same TensorRT-LLM."""

    tags: str
    tensorrt_llm: str
    tensorrt: str | None = None
    cuda: str | None = None
    driver: str | None = None


class Containers(Spec):
    """The table of containers, and the day on which it was true."""

    date: date
    rows: Annotated[tuple[Container, ...], Field(min_length=1)]


def containers() -> Containers:
    """Return the table of the data file, newest first."""
    return validate(Containers, yaml.safe_load(_CONTAINERS.read_text(encoding="utf-8")), source=_CONTAINERS)
