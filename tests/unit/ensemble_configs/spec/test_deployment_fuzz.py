# SPDX-License-Identifier: Apache-2.0
"""Deployments, each wrong or changed in one thing: refused with the key named, or rendered as Triton reads it."""

import functools
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml
from deployment_bases import BASES, write_own_models
from deployment_mutations import KINDS, Field, Mutation, mutations
from deployment_places import all_specs, places_in
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from ensemble_configs.render.helm_values import render_helm_values
from ensemble_configs.render.launch_flags import launch_flags
from ensemble_configs.render.repository import render_repository
from ensemble_configs.spec.deployment import DeploymentSpec, load_deployment
from trireme.base.errors import SpecError

pytestmark = pytest.mark.slow

SAMPLE, COUNT = 600, 3600  # COUNT: so many that every field is touched
FIELDS_IN_TURNS = 7  # of so many mutations one at least goes to a field that no other of its kind went to
# What is always a mistake; the refusal names the very key.
ALWAYS_REFUSED = {"key mistyped", "key unknown", "key twice", "wrong type", "out of range"}
MAX_MESSAGE_LEN = 2000


@functools.cache  # most configs of a mutation are those of its base
def parse(text: str) -> model_config_pb2.ModelConfig:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def render(spec: DeploymentSpec, folder: Path) -> None:
    """Render every file of a deployment, and parse each as its reader does."""
    files = render_repository(spec, root=folder / "models", source="d.yaml")
    configs = {path: text for path, text in files.items() if path.name == "config.pbtxt"}
    assert {path.parts[0] for path in files} == {path.parts[0] for path in configs}
    for path, text in configs.items():
        assert parse(text).name in (path.parts[0], "")  # the user's own may leave its name to its folder
    assert all("\n" not in value for _, value in launch_flags(spec))
    render_for_a_cluster(spec)


def render_for_a_cluster(spec: DeploymentSpec) -> None:
    """Check that each server's part can be read again, or is refused for something that holds only on one machine."""
    try:
        text, refusal = render_helm_values(spec, source="d.yaml"), None
    except SpecError as exc:
        text, refusal = "servers: {}", exc.message
    told = r"\w+: (placement|the engine's)|\w+ is on \d+ nodes|two servers|triton.grpc_tls names files"
    assert refusal is None or re.match(told, refusal)
    for server in yaml.load(text, yaml.CSafeLoader)["servers"].values():
        assert DeploymentSpec.model_validate(yaml.load(server["deployment"], yaml.CSafeLoader)).name == spec.name


def names(message: str, key: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(key)}(?!\w)", message) is not None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_own_models(tmp_path_factory.mktemp("d"))


@pytest.mark.parametrize("base", BASES)
def test_what_is_mutated_is_right_before(base: str, folder: Path) -> None:
    path = folder / "base.yaml"
    path.write_text(yaml.safe_dump(BASES[base]))
    render(load_deployment(path), folder)


def test_the_bases_have_a_place_for_every_spec() -> None:
    assert {place.spec for data in BASES.values() for place in places_in(data)} == all_specs()


@pytest.mark.parametrize("count", [SAMPLE, pytest.param(COUNT, marks=pytest.mark.soak)])
def test_every_mutation_is_refused_with_its_key_named_or_rendered_for_triton(folder: Path, count: int) -> None:
    path = folder / "d.yaml"
    refused: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    touched: set[Field] = set()
    for mutation in mutations(count):
        touched.update(mutation.fields)
        path.write_text(mutation.text)
        try:
            spec = load_deployment(path)
            render(spec, folder)
        except SpecError as exc:
            refused[mutation.kind] += 1
            check_refusal(mutation, exc.message.replace(str(folder), ""))
        except Exception as exc:
            raise AssertionError(f"{mutation}\n{mutation.text}") from exc
        else:
            accepted[mutation.kind] += 1
            assert mutation.kind not in ALWAYS_REFUSED, f"accepted: {mutation}\n{mutation.text}"
    every = {(spec, name) for spec in all_specs() for name in spec.model_fields}
    assert touched >= every if count >= COUNT else len(touched & every) >= count // FIELDS_IN_TURNS
    assert refused.keys() == set(KINDS)
    assert accepted.keys() == set(KINDS) - ALWAYS_REFUSED
    assert min((refused + accepted).values()) >= count // 25
    assert accepted.total() >= count // 4


def check_refusal(mutation: Mutation, message: str) -> None:
    assert "\n" not in message, mutation
    assert len(message) <= MAX_MESSAGE_LEN, mutation
    keys = mutation.keys[:1] if mutation.kind in ALWAYS_REFUSED else mutation.keys
    assert any(names(message, key) for key in keys), f"{mutation}: {message}"
