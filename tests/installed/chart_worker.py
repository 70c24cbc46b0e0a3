# SPDX-License-Identifier: Apache-2.0
"""Answers to questions about a chart, one JSON object a line.

Run by the Python of `.tools/chart`, whose packages do not go together with the project's (`chart_here`).
"""

import functools
import json
import sys
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import kubernetes_validate
import kubernetes_validate.utils

# It reads the file of all definitions, a megabyte and more, once for each document that it is asked about.
kubernetes_validate.utils.schema_contents = functools.cache(kubernetes_validate.utils.schema_contents)


def render(question: dict[str, Any]) -> Any:
    """Return the documents' texts, by template."""
    with helm_python.Chart.load(question["chart"]) as chart:
        return chart.render(question["values"], name=question["name"], namespace=question["namespace"])


def lint(question: dict[str, Any]) -> Any:
    """Return what Helm says of the chart."""
    return helm_python.chart.lint(
        question["chart"], question["values"], strict=True, kube_version=f"v{question['version']}.0"
    )


def validate(question: dict[str, Any]) -> Any:
    """Return what is wrong with each document, by its number: strictly, an unknown key is wrong."""
    texts = [json.dumps(document, sort_keys=True) for document in question["documents"]]
    found = {number: _wrong(text, question["version"], question["schemas"]) for number, text in enumerate(texts)}
    return {number: text for number, text in found.items() if text}


@functools.cache  # most are the same for many values
def _wrong(text: str, version: str, schemas: str) -> str | None:
    document = json.loads(text)
    try:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.SchemaNotFoundError:
            _custom(schemas, document["kind"], document["apiVersion"]).validate(document)
    except jsonschema.ValidationError as exc:
        return f"{'.'.join(map(str, exc.absolute_path))}: {exc.message}"
    return None


@functools.cache
def _custom(folder: str, kind: str, api_version: str) -> Any:
    group, _, version = api_version.partition("/")
    path = Path(folder) / f"{kind}.{group}.{version}.json"
    return jsonschema.Draft202012Validator(_closed(json.loads(path.read_text())["schema"], is_root=True))


def _closed(schema: Any, *, is_root: bool = False) -> Any:
    """Return a schema that refuses properties that it does not name; Kubernetes would drop them without a word."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(each) for key, each in schema.items()}
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and not is_open:
        closed["properties"] = {key: _closed(each) for key, each in schema["properties"].items()}
        if is_root:
            closed["properties"] |= {"apiVersion": {}, "kind": {}, "metadata": {}}
        closed["additionalProperties"] = False
    return closed


def scan(question: dict[str, Any]) -> Any:
    """Return how many of checkov's checks pass on a file, and the numbers of those that fail."""
    # Seconds of imports, of which its command does them all and more.
    from checkov.kubernetes.runner import Runner  # noqa: PLC0415
    from checkov.runner_filter import RunnerFilter  # noqa: PLC0415

    chosen = RunnerFilter(framework=["kubernetes"], download_external_modules=False)
    found = Runner().run(root_folder=None, files=[question["file"]], runner_filter=chosen)
    return {"passed": len(found.passed_checks), "failed": sorted({check.check_id for check in found.failed_checks})}


OPERATIONS = {"render": render, "lint": lint, "validate": validate, "scan": scan}

for line in sys.stdin:
    asked = json.loads(line)
    try:
        answer = {"done": OPERATIONS[asked["op"]](asked)}
    except helm_python.HelmError as exc:
        answer = {"error": str(exc)}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
