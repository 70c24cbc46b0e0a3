# SPDX-License-Identifier: Apache-2.0
"""The runbooks name only what there is: commands, options, values, keys of a deployment, metrics, alerts, headings."""

import json
import re
import shlex
import types
import typing
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import yaml
from command_options import options
from pydantic import BaseModel

from documents.check_links import CODE_BLOCK, anchors
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.model_spec import ModelSpec
from observability.files import ALERT_RULES, RECORDING_RULES
from observability.rules.alerts import alert_groups
from observability.rules.objectives import Objectives
from observability.rules.rule_files import Alert
from trireme.base.project_files import CODE_ROOT
from trireme.commands import COMMANDS

pytestmark = pytest.mark.slow

CHART = CODE_ROOT / "helm/trireme"
RUNBOOKS = {path.name: path.read_text(encoding="utf-8") for path in sorted((CODE_ROOT / "docs/runbooks").glob("*.md"))}
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
TOOLS = {"helm", "kubectl", "trireme", "promtool"}
HELM = {  # of Helm 3.15 and of Helm 4 alike
    "template": {"-n", "-f"},
    "install": {"-n", "-f"},
    "upgrade": {"-n", "-f", "--set", "--reuse-values"},
    "rollback": {"-n"},
    "uninstall": {"-n"},
    "history": {"-n", "--max"},
    "get": {"-n", "-o", "--revision"},
    "version": set(),
}
every = pytest.mark.parametrize("name", RUNBOOKS)


def blocks(text: str, *kinds: str) -> Iterator[str]:
    for kind, body in BLOCK.findall(text):
        if kind in kinds:
            yield body


def prose(text: str) -> str:
    return CODE_BLOCK.sub("", text)


def commands(text: str) -> list[list[str]]:
    """Return the words of each command of one of our tools, in code blocks and in lines, without comments."""
    lines = [line[2:] for body in blocks(text, "console") for line in body.splitlines() if line.startswith("$ ")]
    lines += [word for word in INLINE.findall(prose(text)) if word.split()[0] in TOOLS]
    found = []
    for line in lines:
        lexer = shlex.shlex(re.sub(r" {2,}#.*", "", line), posix=True, punctuation_chars="|;&()")
        lexer.commenters = ""
        lexer.whitespace_split = True
        command: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("|;&()") or word == "--":  # behind it, what kubectl runs in a pod
                found += [command[n:] for n in [first_tool(command)] if n is not None]
                command = []
            else:
                command.append(word)
    return [command for command in found if len(command) > 1]


def first_tool(command: Sequence[str]) -> int | None:
    return next((n for n, word in enumerate(command[:3]) if word in TOOLS), None)


def of_tool(tool: str) -> list[tuple[str, list[str]]]:
    return [(name, words) for name, text in RUNBOOKS.items() for words in commands(text) if words[0] == tool]


def test_every_command_of_trireme_and_its_options_exist() -> None:
    found = of_tool("trireme")
    assert len(found) > 15
    for name, [_, command, *words] in found:
        assert command in COMMANDS, f"{name}: trireme {command}"
        verbs = [verb.replace("_", "-") for verb in COMMANDS[command].verbs]
        path = (command, words[0]) if verbs and words else (command,)
        assert not verbs or not words or words[0] in verbs, f"{name}: trireme {command} {words[0]}"
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert not used or used <= options(*path), f"{name}: trireme {' '.join(path)}: {used - options(*path)}"


def test_options_of_helm_are_of_both_versions() -> None:
    found = of_tool("helm")
    assert len(found) > 30
    for name, words in found:
        used = {word.partition("=")[0] for word in words[2:] if word.startswith("-") and word != "-"}
        if words[-1] == "--force-conflicts":
            used.remove("--force-conflicts")  # of Helm 4 alone, as its text says
        assert used <= HELM[words[1]], f"{name}: {' '.join(words)}"


def in_schema(path: Sequence[str], schema: Any = SCHEMA) -> bool:
    """Return whether the chart has a value; a server and a traffic may be called anything."""
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    if not path:
        return True
    first, *rest = path
    if first in schema.get("properties", {}):
        return in_schema(rest, schema["properties"][first])
    more = schema.get("additionalProperties", not schema.get("properties"))
    return more is True or (isinstance(more, dict) and in_schema(rest, more))


def in_models(path: Sequence[str], *models: Any) -> bool:
    """Return whether a deployment file has a key."""
    if not path:
        return True
    first, *rest = path
    fields = [model.model_fields[first] for model in models if first in model.model_fields]
    return any(in_models(rest, *models_in(field.annotation)) for field in fields)


def models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is not None:
        return [model for each in typing.get_args(annotation) for model in models_in(each)]
    return []


def exists(path: Sequence[str]) -> bool:
    of_servers = SCHEMA["$defs"]["server"]["properties"]
    return (
        (path[0] in SCHEMA["properties"] and in_schema(path))
        or in_models(path, DeploymentSpec, ModelSpec)
        or (len(path) == 1 and path[0] in of_servers)
    )


def paths(value: Any, *before: str) -> Iterator[tuple[str, ...]]:
    yield before
    if isinstance(value, dict):
        for key, each in value.items():
            yield from paths(each, *before, str(key))


@every
def test_every_value_and_every_key_of_a_deployment_that_is_named_exists(name: str) -> None:
    text = RUNBOOKS[name]
    named = [word for word in INLINE.findall(prose(text)) if re.fullmatch(r"[a-zA-Z]+(\.\w[\w-]*)+", word)]
    for word in named:
        if word.endswith((".yaml", ".json", ".md")) or (CODE_ROOT / word.replace(".", "/")).with_suffix(".py").exists():
            continue  # a file, a module
        assert exists(word.split(".")), f"{name}: {word}"
    for words in commands(text):
        for option, value in pairwise(words):
            if words[0] == "helm" and option == "--set":
                assert in_schema(value.partition("=")[0].split(".")), f"{name}: --set {value}"


@every
def test_every_file_that_is_shown_is_one_of_values_or_of_a_deployment(name: str) -> None:
    for body in blocks(RUNBOOKS[name], "yaml"):
        shown = yaml.safe_load(body)
        if "kind" not in shown:  # an object of Kubernetes
            for path in filter(None, paths(shown)):
                assert in_schema(path) or in_models(path, DeploymentSpec, ModelSpec), f"{name}: {'.'.join(path)}"
    if name == "engine_upgrade.md":
        before, after = (yaml.safe_load(body) for body in blocks(RUNBOOKS[name], "yaml") if body.startswith("# chat.y"))
        DeploymentSpec.model_validate(after)
        [candidate] = DeploymentSpec.model_validate(before).models[0].other_releases
        assert candidate.release == after["release"] != before["release"]


def rule_texts() -> str:
    return "".join((CHART / "files" / path).read_text(encoding="utf-8") for path in (RECORDING_RULES, ALERT_RULES))


@cache
def sources() -> str:
    """Return the text of the modules that name metrics."""
    files = [path for room in ("serving", "gateway") for path in (CODE_ROOT / room).rglob("*.py")]
    return "".join(path.read_text(encoding="utf-8") for path in files)


ALERTS = [rule for group in alert_groups(Objectives()) for rule in group.rules if isinstance(rule, Alert)]


@every
def test_every_alert_and_metric_that_is_named_exists(name: str) -> None:
    text = RUNBOOKS[name]
    assert set(re.findall(r"\bTrireme[A-Z]\w+", text)) <= {alert.name for alert in ALERTS}
    for metric in set(re.findall(r"\b(?:(?:model|engine|slo):)?trireme_\w+(?::\w+)*", text)):
        recorded = f"- record: {metric}\n" in rule_texts()
        names = (re.sub(pattern, "", metric) for pattern in ("_(bucket|sum|count)$", "_total$"))  # a client adds it
        assert recorded or any(f'"{each}"' in sources() for each in names), f"{name}: {metric}"


@pytest.mark.parametrize("alert", ALERTS, ids=[alert.name for alert in ALERTS])
def test_every_runbook_url_leads_to_a_heading(alert: Alert) -> None:
    path, _, anchor = alert.runbook_url.partition("#")
    assert anchor in anchors((CODE_ROOT / path).read_text(encoding="utf-8"))


def test_the_index_has_every_runbook() -> None:
    linked = set(re.findall(r"^\| \[(\w+\.md)\]", RUNBOOKS["README.md"], re.MULTILINE))
    assert linked == set(RUNBOOKS) - {"README.md"}


def test_a_panel_that_is_named_is_on_a_dashboard() -> None:
    titles = "".join(path.read_text(encoding="utf-8") for path in (CHART / "files/dashboards").glob("*.json"))
    for name in ("slow_ttft.md", "alerts.md"):
        for quoted in re.findall(r'"([A-Z][\w\' ,]+)"', INLINE.sub("", prose(RUNBOOKS[name]))):
            assert json.dumps(quoted) in titles, f"{name}: {quoted}"


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("servers.any.scaling.minReplicas", True),
        ("servers.any.scaling.least", False),
        ("traffic.any.mirror.percent", True),
        ("traffic.any.weight", False),
        ("engine.num_kv_blocks", True),
        ("engine.kv_blocks", False),
        ("admission.budget.kv_fraction", True),
        ("drain.delay", False),
    ],
)
def test_what_is_no_key_would_be_found(path: str, is_one: bool) -> None:
    assert exists(path.split(".")) == is_one
