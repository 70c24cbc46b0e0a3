# SPDX-License-Identifier: Apache-2.0
"""The workload of a load, as typed data: `trireme bench ... --workload FILE.yaml`; its timing is not part of it."""

from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field, TypeAdapter, model_validator

from ensemble_configs.spec.base import Boolean, NotNegative, Number, Positive, Spec
from ensemble_configs.spec.strict_yaml import load_yaml
from ensemble_configs.spec.validation import validate
from trireme.base.errors import SpecError

NonNegativeNumber = Annotated[Number, Field(ge=0)]
PositiveNumber = Annotated[Number, Field(gt=0)]
MAX_TOKENS = 100_000_000  # of a prompt: more than any model takes


class Lengths(Spec):
    """The lengths of prompts or answers, in tokens: drawn for each request, rounded, and cut to `min` and `max`.

    `stddev` is that of the lengths themselves, for the lognormal distribution too.
    """

    mean: Annotated[Number, Field(gt=0, le=MAX_TOKENS)]
    stddev: NonNegativeNumber = 0.0
    distribution: Literal["normal", "lognormal", "uniform"] = "normal"
    min: Positive = 1
    max: Positive | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_a_number(cls, given: object) -> object:
        """Take a plain number for a constant length."""
        return {"mean": given} if isinstance(given, int | float) and not isinstance(given, bool) else given

    @model_validator(mode="after")
    def _has_room(self) -> "Lengths":
        if self.max is not None and self.max < self.min:
            raise ValueError(f"min ({self.min}) is above max ({self.max})")
        for name, bound, is_beyond in (
            ("min", self.min, self.mean < self.min),
            ("max", self.max, self.max is not None and self.mean > self.max),
        ):
            if is_beyond:
                raise ValueError(f"mean ({self.mean:g}) is beyond {name} ({bound}): nothing near it could be drawn")
        return self


class _Workload(Spec):
    """The fields of every kind of workload.

    Attributes:
        priorities: shares of the classes premium, standard and batch; none: no class is sent.
        tenants: requests belong to them by turns; none: no tenant is sent.
        temperature: None: greedy.
        is_exact: answers have exactly the length that is asked for, whatever the model would say.
    """

    priorities: dict[Literal["premium", "standard", "batch"], PositiveNumber] = Field(default={})
    tenants: tuple[str, ...] = ()
    temperature: PositiveNumber | None = None
    is_exact: Boolean = True


class FixedWorkload(_Workload):
    """A list of prompts that are asked by turns."""

    kind: Literal["fixed"]
    prompts: Annotated[tuple[str, ...], Field(min_length=1)]
    max_tokens: Positive = 64
    is_exact: Boolean = False


class SyntheticWorkload(_Workload):
    """Prompts of words drawn by chance; none comes twice, so that no prefix cache helps."""

    kind: Literal["synthetic"]
    isl: Lengths
    osl: Lengths


class SharedPrefixWorkload(_Workload):
    """Prompts that begin with one of a few long texts, as system prompts and documents do."""

    kind: Literal["shared_prefix"]
    num_prefixes: Positive = 4
    prefix_tokens: Positive
    isl: Lengths  # of what follows the prefix
    osl: Lengths


class ConversationWorkload(_Workload):
    """Users who go on talking: each prompt is all that was said before, and a new question."""

    kind: Literal["conversation"]
    turns: Lengths
    system_tokens: NotNegative = 0
    isl: Lengths  # of a question
    osl: Lengths
    think_s: NonNegativeNumber = 0.0  # mean of the exponential time between an answer's end and the next question


class TraceWorkload(_Workload):
    """Requests as they were recorded, at the moments at which they came.

    ``azure``: the CSV of Azure's public LLM inference traces (TIMESTAMP, ContextTokens, GeneratedTokens); requests
    that made nothing are left out. ``jsonl``: a line for each request: `at_s`, then `prompt` or `input_tokens`, and
    `output_tokens`; `tenant` and `priority` (1, 2, 3) where known.
    """

    kind: Literal["trace"]
    path: Path
    format: Literal["azure", "jsonl"]
    speedup: PositiveNumber = 1.0  # 2: twice as fast as it was recorded
    start_s: NonNegativeNumber = 0.0  # what came before is left out
    max_input_tokens: Positive | None = None  # longer prompts are cut to it
    max_output_tokens: Positive | None = None


Workload = Annotated[
    FixedWorkload | SyntheticWorkload | SharedPrefixWorkload | ConversationWorkload | TraceWorkload,
    Field(discriminator="kind"),
]
WORKLOAD: TypeAdapter[Workload] = TypeAdapter(Workload)


class _File(Spec):
    workload: Workload


def read_workload(path: Path) -> Workload:
    """Return the workload in a file.

    Raises:
        SpecError: it cannot be read, or what is wrong in it, by path.
    """
    try:
        data = load_yaml(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise SpecError(f"the workload {path} cannot be read: {exc.strerror or exc}", field="workload") from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise SpecError(f"the workload {path} is not YAML: {exc}", field="workload") from exc
    return validate(_File, {"workload": data}, source=path).workload


def constant(tokens: int) -> Lengths:
    """Return lengths that are always equal."""
    return Lengths(mean=float(tokens), min=tokens, max=tokens)
