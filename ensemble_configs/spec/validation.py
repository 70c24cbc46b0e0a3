# SPDX-License-Identifier: Apache-2.0
"""Validation of data against a spec: each finding has its path, the value, and the key that was probably meant."""

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from ensemble_configs.spec.base import Location, Spec
from trireme.base.errors import SpecError

Model = TypeVar("Model", bound=BaseModel)


def validate(model: type[Model], data: object, *, source: Path) -> Model:
    """Check data read from `source` against a spec.

    Raises:
        SpecError: names every finding by its path, in one line.
    """
    try:
        return model.model_validate(data, context={"base_dir": source.parent})
    except ValidationError as exc:
        errors = [error for error in exc.errors() if not _follows_from_another(error)]
        found = dict.fromkeys(_finding(error, model, data) for error in errors)  # each once
        raise SpecError(f"{source}: {'; '.join(found)}", file=source) from exc


_MAX_SHOWN_LEN = 80  # of a wrong value
_NO_MAPPING = {"model_type", "model_attributes_type"}  # which pydantic tells by the names of its classes


def _follows_from_another(error: object) -> bool:
    """Return whether an error only follows from another: pydantic calls a list too short if an item in it is wrong."""
    assert isinstance(error, dict)
    given = error.get("input")
    return error["type"] == "too_short" and isinstance(given, Sequence) and len(given) > error["ctx"]["actual_length"]


def _finding(error: object, model: type[BaseModel], data: object) -> str:
    assert isinstance(error, dict)
    loc = tuple(part for part, is_tag, _ in _walk(error["loc"], model) if not is_tag)  # no file has a tag
    shown_loc = model.shown_location(loc, data) if issubclass(model, Spec) else loc
    where = ".".join(str(part) for part in shown_loc)
    if error["type"] == "union_tag_not_found":
        return _without_tag(error, model, where)
    value = error.get("input")
    is_plain = isinstance(value, str | int | float | bool)
    got = repr(value) if is_plain else ""
    got = got if len(got) <= _MAX_SHOWN_LEN else f"{got[:_MAX_SHOWN_LEN]}..."
    shown = (f" (got {got})" if is_plain else "") + (
        _allowed(error["loc"], model, is_at_top=len(shown_loc) == 1) if _is_unknown(error) else ""
    )
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] in _NO_MAPPING:
        first, *others = _models_at(error["loc"], model)
        shared = [field for field in first.model_fields if all(field in other.model_fields for other in others)]
        message = f"should be a mapping of {', '.join(shared)}" + (", and what goes with these" if others else "")
    return f"{where}: {message[:1].lower()}{message[1:]}{shown}" if where else f"{message}{shown}"


def _without_tag(error: dict[str, Any], model: type[BaseModel], where: str) -> str:
    """Return the message about a part whose tag is missing, perhaps because the tag's key is mistyped."""
    tag = error["ctx"]["discriminator"].strip("'")
    there = _models_at(error["loc"], model)
    tags = sorted({value for part in there for value in get_args(part.model_fields[tag].annotation)})
    known = {field for part in there for field in part.model_fields}
    given = error["input"].keys() if isinstance(error["input"], dict) else ()
    unknown = [str(key) for key in given if key not in known]
    hint = f"; {', '.join(unknown)} is not known there" if unknown else ""
    return f"{where}.{tag}: field required, one of {', '.join(tags)}{hint}"


def _is_unknown(error: dict[str, object]) -> bool:
    return error["type"] == "extra_forbidden"


def _allowed(loc: Location, model: type[BaseModel], *, is_at_top: bool) -> str:
    """Return, for an unknown field, the one that was meant, or else all that could stand there."""
    *parents, name = loc
    there = [*_models_at(parents, model), *([model] if is_at_top else [])]
    fields = sorted({field for part in there for field in part.model_fields})
    meant = difflib.get_close_matches(str(name), fields, n=1, cutoff=0.75)
    return f"; did you mean {meant[0]}?" if meant else f"; allowed here: {', '.join(fields)}"


def _models_at(parents: Sequence[str | int], model: type[BaseModel]) -> list[type[BaseModel]]:
    """Return the models that a location leads to; in a union of models it names the tag of one."""
    *_, (_, _, models) = [("", False, [model]), *_walk(parents, model)]
    return models


def _walk(
    location: Sequence[str | int], model: type[BaseModel]
) -> Iterator[tuple[str | int, bool, list[type[BaseModel]]]]:
    """Yield each part of a location, whether it is the tag of a model in a union, and the models that it leads to."""
    models = [model]
    for part in location:
        tagged = [each for each in models if any(part in get_args(f.annotation) for f in each.model_fields.values())]
        is_tag = len(models) > 1 and bool(tagged)
        if is_tag:
            models = tagged
        else:
            fields = [field for each in models for name, field in each.model_fields.items() if name == part]
            models = [inner for field in fields for inner in _models_in(field.annotation)] or models
        yield part, is_tag, models


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]
