# SPDX-License-Identifier: Apache-2.0
"""The places of specs in a deployment's data, and what the schema says of each of their fields."""

import functools
from collections.abc import Iterator
from typing import NamedTuple, get_args

from deployment_values import Schema, alternatives
from pydantic import BaseModel

from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.model_spec import ModelSpec

Path = tuple[str | int, ...]
_TAGS = ("provider", "method", "action")  # of the unions


class Place(NamedTuple):
    """A mapping of the data, and the spec that it is read by; a flat deployment is two at once."""

    path: Path
    spec: type[BaseModel]


def specs_in(annotation: object) -> list[type[BaseModel]]:
    """Return every spec that a field of this type can hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [spec for part in get_args(annotation) for spec in specs_in(part)]


def all_specs() -> set[type[BaseModel]]:
    """Return every spec that a deployment can hold."""
    found: set[type[BaseModel]] = set()
    waiting: list[type[BaseModel]] = [DeploymentSpec]
    while waiting:
        if (spec := waiting.pop()) not in found:
            found.add(spec)
            waiting += [part for field in spec.model_fields.values() for part in specs_in(field.annotation)]
    return found


def places_in(data: object, spec: type[BaseModel] = DeploymentSpec, path: Path = ()) -> Iterator[Place]:
    """Yield every mapping of the data that a spec reads."""
    if not isinstance(data, dict):
        return
    yield Place(path, spec)
    if spec is DeploymentSpec and "models" not in data:
        of_model = {key: value for key, value in data.items() if key == "name" or key not in spec.model_fields}
        yield from places_in(of_model, ModelSpec)
    for name, value in data.items():
        if name not in spec.model_fields:
            continue
        parts = specs_in(spec.model_fields[name].annotation)
        for number, item in enumerate(value) if isinstance(value, list) else [(None, value)]:
            below = (*path, name) if number is None else (*path, name, number)
            if fitting := [part for part in parts if _is_tagged(part, item)]:
                yield from places_in(item, fitting[0], below)


def _is_tagged(spec: type[BaseModel], data: object) -> bool:
    if not isinstance(data, dict):
        return False
    tags = [tag for tag in _TAGS if tag in spec.model_fields]
    return all(data.get(tag) in get_args(spec.model_fields[tag].annotation) for tag in tags)


@functools.cache
def fields_of(spec: type[BaseModel]) -> dict[str, list[Schema]]:
    """Return, for each field, the JSON schemas of its alternatives."""
    schema = spec.model_json_schema()
    definitions = schema.get("$defs", {})
    properties = schema.get("properties") or definitions[schema["$ref"].rpartition("/")[2]]["properties"]
    return {name: list(alternatives(field)) for name, field in properties.items()}
