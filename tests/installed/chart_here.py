# SPDX-License-Identifier: Apache-2.0
"""The chart, rendered by Helm's own engine and held against Kubernetes' schemas, for tests."""

import atexit
import functools
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from ensemble_configs.render.helm_values import render_helm_values
from ensemble_configs.spec.deployment import load_deployment
from scripts.environments import ENVIRONMENTS, python_of

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm/trireme"
SCHEMAS = ROOT / "tests/data/crds"
PYTHON = python_of(ROOT, ENVIRONMENTS["chart"])
EXAMPLES = tuple(sorted(path.stem for path in (ROOT / "helm/examples").glob("*.yaml")))
GOLDEN = ROOT / "tests/golden/helm"
# Examples that name one another, by the releases as which they are installed.
INSTALLED_AS = {"llama_8b_prefill": "llama-8b-prefill", "llama_8b_decode": "llama-8b-decode"}
DIGEST = "sha256:" + "0123456789abcdef" * 4
IMAGES: dict[str, Any] = {
    "image": {"repository": "registry.example.com/trireme", "digest": DIGEST},
    "envoy": {"image": {"digest": DIGEST}},
}
NOTES = "NOTES.txt"
# Custom resources without a schema here: what we write of them is in `kubernetes_structures`, `monitoring_structures`.
STRUCTURES = ("BackendTLSPolicy", "GRPCRoute", "HTTPRoute", "PodMonitor", "PrometheusRule")
needs_chart = pytest.mark.skipif(
    not PYTHON.is_file(), reason="what checks the chart is not installed: python3 scripts/bootstrap.py --only chart"
)

Values = Mapping[str, Any]
Documents = list[dict[str, Any]]


class ChartRefused(AssertionError):
    """The refusal of Helm to render the chart; the text is Helm's."""


@functools.cache
def _worker() -> "subprocess.Popen[str]":
    """Return the worker of the process that tests run in."""
    worker = subprocess.Popen(
        [PYTHON, Path(__file__).with_name("chart_worker.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(worker.kill)
    return worker


def _ask(operation: str, **question: object) -> Any:
    worker = _worker()
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(json.dumps({"op": operation, "chart": str(CHART), **question}) + "\n")
    worker.stdin.flush()
    answer = json.loads(worker.stdout.readline())
    if "error" in answer:
        raise ChartRefused(answer["error"])
    return answer["done"]


def render_texts(values: Values, *, name: str = "chat", namespace: str = "llm") -> dict[str, str]:
    """Return what each template makes, by its path; without templates that make nothing.

    Raises:
        ChartRefused: Helm refuses the values.
    """
    made = _rendered(json.dumps(values), name, namespace)
    return {path: text for path, text in made.items() if path.endswith(NOTES) or yaml_documents(text)}


@functools.lru_cache(256)
def _rendered(values: str, name: str, namespace: str) -> dict[str, str]:
    """Return the texts of values in JSON's form; one test asks what another one has asked."""
    made: dict[str, str] = _ask("render", values=json.loads(values), name=name, namespace=namespace)
    return made


def render(values: Values, *, name: str = "chat", namespace: str = "llm") -> Documents:
    """Return the documents of every template.

    Raises:
        ChartRefused: Helm refuses the values.
    """
    return [
        document
        for path, text in render_texts(values, name=name, namespace=namespace).items()
        if not path.endswith(NOTES)
        for document in yaml_documents(text)
    ]


def yaml_documents(text: str) -> Documents:
    """Return the documents that hold something."""
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


def lint(values: Values, *, version: str = "1.30") -> Any:
    """Return what Helm's strict lint says.

    Raises:
        ChartRefused: Helm refuses the values.
    """
    return _ask("lint", values=values, version=version)


def wrong(documents: Sequence[Mapping[str, Any]], *, version: str) -> dict[str, str]:
    """Return what the schemas of a version of Kubernetes and of custom resources refuse, by kind and name."""
    documents = [document for document in documents if document["kind"] not in STRUCTURES]
    found = _ask("validate", documents=documents, version=version, schemas=str(SCHEMAS))
    return {
        f"{documents[int(number)]['kind']} {documents[int(number)]['metadata']['name']}": text
        for number, text in found.items()
    }


def scan(file: Path) -> list[str]:
    """Return the numbers of checkov's checks that fail on a file of documents."""
    found = _ask("scan", file=str(file))
    assert found["passed"] > 50
    return list(found["failed"])


def of_kind(documents: Documents, kind: str) -> Documents:
    """Return the documents of a kind, in their order."""
    return [document for document in documents if document["kind"] == kind]


def deployment_values(path: Path) -> dict[str, Any]:
    """Return what `trireme render --helm` prints of a deployment file, as Helm reads it."""
    text = render_helm_values(load_deployment(path), source=path.name)
    values: dict[str, Any] = yaml.load(text, yaml.CSafeLoader)
    return values


def merged(*layers: Values) -> dict[str, Any]:
    """Return values files put one over the other, as `helm -f` does it."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both_are_maps = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
            result[key] = merged(result[key], value) if both_are_maps else value
    return result


def example_values(name: str) -> dict[str, Any]:
    """Return the values of `helm/examples/NAME.yaml` over `ensemble_configs/deployments/NAME.yaml`."""
    site = yaml.load((ROOT / f"helm/examples/{name}.yaml").read_text(), yaml.CSafeLoader)
    return merged(deployment_values(ROOT / f"ensemble_configs/deployments/{name}.yaml"), site)


def golden_text(name: str) -> str:
    """Return everything that an example makes, template by template."""
    texts = render_texts(example_values(name), name=INSTALLED_AS.get(name, "chat"))
    return "".join(f"# {path}\n{_tidy(text)}\n" for path, text in sorted(texts.items()))


def _tidy(text: str) -> str:
    """Return a text without the empty lines and the spaces at line ends that templates leave."""
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())
