# SPDX-License-Identifier: Apache-2.0
"""Random mutations of deployments, equal for equal seeds: each does one thing, of a kind, to one place of a base.

Fields are drawn so that every field of every spec has its turn, whether the base sets it or not.
"""

import copy
import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Any

import yaml
from deployment_bases import BASES, OPENVINO_DIR
from deployment_places import Path, Place, fields_of, places_in
from deployment_values import Schema, allowed, is_numeric, is_scalar, of_wrong_type, out_of_range
from pydantic import BaseModel

Field = tuple[type[BaseModel], str]

_AGAIN = "__again"  # behind a key, until the text is written, in which it may stand twice


class NothingToMutate(Exception):
    """A draw without such a place; another draw is made."""


@dataclasses.dataclass(frozen=True)
class Mutation:
    """A deployment that differs in one thing from one that is right.

    Attributes:
        kind: what was done.
        keys: the names on the way to what was touched; a refusal says one of them.
        fields: what was touched, as the specs have it; none where there is no such field.
        text: the YAML file.
    """

    number: int
    base: str
    kind: str
    keys: tuple[str, ...]
    fields: tuple[Field, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.number} {self.base}: {self.kind} at {'.'.join(self.keys)}"


@dataclasses.dataclass
class _Draw:
    """A base that is being mutated."""

    random: random.Random
    data: Any
    touched: list[Path] = dataclasses.field(default_factory=list)
    fields: list[Field] = dataclasses.field(default_factory=list)

    def place(self) -> Place:
        return self.random.choice(list(places_in(self.data)))

    def at(self, path: Path) -> Any:
        found = self.data
        for part in path:
            found = found[part]
        return found

    def touch(self, place: Place, key: str) -> None:
        self.touched.append((*place.path, key))
        if key in place.spec.model_fields:
            self.fields.append((place.spec, key))

    def put(self, place: Place, key: str, value: object) -> None:
        self.touch(place, key)
        self.at(place.path)[key] = value

    def present_key(self, wanted: Callable[[Any], bool] = lambda _: True) -> tuple[Place, str]:
        """Return a place and a key that it has, with a value as wanted."""
        found = [
            (place, key)
            for place in places_in(self.data)
            for key, value in self.at(place.path).items()
            if key in place.spec.model_fields and wanted(value)
        ]
        if not found:
            raise NothingToMutate
        return self.random.choice(found)


def _key_dropped(draw: _Draw) -> None:
    place, key = draw.present_key()
    draw.touch(place, key)
    del draw.at(place.path)[key]


def _key_mistyped(draw: _Draw) -> None:
    place, key = draw.present_key()
    at = draw.random.randrange(len(key))
    typos = {key[:at] + key[at + 1 :], key[:at] + key[at] + key[at:], key[:at] + "x" + key[at + 1 :], key.upper()}
    typo = draw.random.choice(sorted(typos - {key, ""}))
    mapping = draw.at(place.path)
    draw.put(place, typo, mapping.pop(key))


def _key_unknown(draw: _Draw) -> None:
    place = draw.place()
    key = draw.random.choice(["colour", "max_tokens_per_day", "TP", "x-y", "spec", "engine.dir", "1"])
    draw.put(place, key, draw.random.choice([1, "on", {}, [], None]))


def _key_twice(draw: _Draw) -> None:
    place, key = draw.present_key()
    draw.touch(place, key)
    draw.at(place.path)[key + _AGAIN] = copy.deepcopy(draw.at(place.path)[key])


def _wrong_type(draw: _Draw, place: Place, key: str) -> None:
    draw.put(place, key, of_wrong_type(fields_of(place.spec)[key], draw.random))


def _out_of_range(draw: _Draw, place: Place, key: str) -> None:
    draw.put(place, key, out_of_range(fields_of(place.spec)[key], draw.random))


def _other_allowed_value(draw: _Draw, place: Place, key: str) -> None:
    schemas = [schema for schema in fields_of(place.spec)[key] if is_scalar(schema, key)]
    before = draw.at(place.path).get(key)
    draw.put(place, key, allowed(key, draw.random.choice(schemas), before, draw.random))


def _list_entry_twice(draw: _Draw) -> None:
    place, key = draw.present_key(lambda value: isinstance(value, list) and bool(value))
    entries = draw.at(place.path)[key]
    entry = copy.deepcopy(draw.random.choice(entries))
    if isinstance(entry, dict) and draw.random.random() < 0.5:  # another one of its kind
        entry |= {"name": "again"} if "name" in entry else {"release": 7}
    entries.append(entry)
    draw.touch(place, key)


def _list_entry_removed(draw: _Draw) -> None:
    place, key = draw.present_key(lambda value: isinstance(value, list) and bool(value))
    draw.at(place.path)[key].pop(draw.random.randrange(len(draw.at(place.path)[key])))
    draw.touch(place, key)


def _values_swapped(draw: _Draw) -> None:
    """Swap the values of two fields that hold a value of one type."""
    first, key = draw.present_key(lambda value: isinstance(value, str | int | float))
    kind = type(draw.at(first.path)[key])
    second, other = draw.present_key(lambda value: type(value) is kind)
    if (first.path, key) == (second.path, other):
        raise NothingToMutate
    one, two = draw.at(first.path)[key], draw.at(second.path)[other]
    draw.put(first, key, two)
    draw.put(second, other, one)


def _other_provider(draw: _Draw) -> None:
    tagged = [p for p in places_in(draw.data) if {"provider", "method"} & p.spec.model_fields.keys()]
    place = draw.random.choice(tagged)
    key = "provider" if "provider" in place.spec.model_fields else "method"
    others = {
        "provider": ["openvino", "simulated", "tensorrt", "pytorch", "vllm", "sglang"],
        "method": ["lookahead", "medusa", "eagle", "ngram", "mtp", "eagle3", "draft_target", "magic"],
    }[key]
    draw.put(place, key, draw.random.choice([each for each in others if each != draw.at(place.path)[key]]))
    if draw.random.random() < 0.5:  # whoever changes it knows what else has to be changed
        engine = draw.at(place.path)
        folder = {"openvino": OPENVINO_DIR, "tensorrt": "/engine", "pytorch": "/engine", "vllm": "/engine"}.get(
            engine.get("provider")
        )
        engine.pop("dir", None)
        engine |= {} if folder is None else {"dir": folder}


def _other_name(draw: _Draw) -> None:
    """Change the name of the deployment, a model, a resource, a pool of memory; or the prefix of a model's names."""
    named = [(p, key) for p in places_in(draw.data) for key in ("name", "prefix", "pool") if key in p.spec.model_fields]
    place, key = draw.random.choice(named)
    taken = [draw.at(p.path)[key] for p in places_in(draw.data) if key in draw.at(p.path)]
    draw.put(place, key, draw.random.choice(["other", "x_", "n" * 64, "Upper", "", "a b", "ü", *taken]))


def _other_ports(draw: _Draw) -> None:
    triton = next((place for place in places_in(draw.data) if place.path == ("triton",)), None)
    if triton is None:
        draw.data["triton"] = {}
        triton = next(place for place in places_in(draw.data) if place.path == ("triton",))
    for key in draw.random.sample(["http_port", "grpc_port", "metrics_port"], draw.random.randint(1, 3)):
        draw.put(triton, key, draw.random.choice([1, 80, 8000, 8001, 9000, 9001, 65535, 65536, 0, -1]))


_AT_RANDOM: dict[str, Callable[[_Draw], None]] = {
    "key dropped": _key_dropped,
    "key mistyped": _key_mistyped,
    "key unknown": _key_unknown,
    "key twice": _key_twice,
    "list entry twice": _list_entry_twice,
    "list entry removed": _list_entry_removed,
    "values swapped": _values_swapped,
    "other provider": _other_provider,
    "other name": _other_name,
    "other ports": _other_ports,
}
# These go to every field in turns, of all bases, and so come more often; not to every field is there a way.
_FIELD_BY_FIELD: dict[str, tuple[int, Callable[[_Draw, Place, str], None], Callable[[str, list[Schema]], bool]]] = {
    "wrong type": (3, _wrong_type, lambda name, _: name != "models"),
    "out of range": (3, _out_of_range, lambda _, schemas: any(is_numeric(schema) for schema in schemas)),
    "other allowed value": (
        6,
        _other_allowed_value,
        lambda name, schemas: any(is_scalar(schema, name) for schema in schemas),
    ),
}
KINDS = (*_AT_RANDOM, *_FIELD_BY_FIELD)


def mutations(count: int, *, seed: int = 5) -> Iterator[Mutation]:
    """Yield mutations, equal for equal seeds; kinds come in turns."""
    chance = random.Random(seed)
    turns = {kind: _turns(may, chance) for kind, (_, _, may) in _FIELD_BY_FIELD.items()}
    kinds = [*_AT_RANDOM, *(kind for kind, (times, _, _) in _FIELD_BY_FIELD.items() for _ in range(times))]
    number = 0
    while number < count:
        kind = kinds[number % len(kinds)]
        if kind in turns:
            base, place, key = next(turns[kind])
            draw = _Draw(chance, copy.deepcopy(BASES[base]))
            _FIELD_BY_FIELD[kind][1](draw, place, key)
        else:
            base = chance.choice(list(BASES))
            draw = _Draw(chance, copy.deepcopy(BASES[base]))
            try:
                _AT_RANDOM[kind](draw)
            except NothingToMutate:
                continue
        keys = dict.fromkeys(part for path in draw.touched for part in reversed(path) if isinstance(part, str))
        text = yaml.dump(draw.data, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True)
        yield Mutation(number, base, kind, tuple(keys), tuple(draw.fields), text.replace(_AGAIN, ""))
        number += 1


def _turns(may: Callable[[str, list[Schema]], bool], chance: random.Random) -> Iterator[tuple[str, Place, str]]:
    """Yield every field again and again, each time in another base that has a place for it."""
    where: dict[Field, list[tuple[str, Place, str]]] = {}
    for base, data in BASES.items():
        for place in places_in(data):
            for key, schemas in fields_of(place.spec).items():
                if may(key, schemas):
                    where.setdefault((place.spec, key), []).append((base, place, key))
    while True:
        for found in chance.sample(list(where.values()), len(where)):
            yield chance.choice(found)
