# SPDX-License-Identifier: Apache-2.0
"""The site builds without a warning, reads nothing from the network, and its reference says what the code says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from documents.reference import metrics_page
from documents.reference.cells import cell
from documents.reference.reference_pages import WRITERS
from ensemble_configs.spec.deployment import DeploymentSpec
from trireme.base.errors import parse_token
from trireme.base.project_files import CODE_ROOT
from trireme.commands import COMMANDS, verb_of

SECTIONS = ["Start", "Serve", "Build", "Operate", "Measure", "Reference", "Decisions"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site strictly: a page in no section or a link that leads nowhere fails the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=CODE_ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr + built.stdout
    return folder


def page(name: str) -> str:
    return next(write for path, write in WRITERS.items() if path.name == name)("")


def pages(site: Path) -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}


def test_every_page_of_the_documents_is_in_the_site(site: Path) -> None:
    docs = {path.relative_to(CODE_ROOT / "docs").with_suffix("") for path in (CODE_ROOT / "docs").rglob("*.md")}
    built = {path.relative_to(site).with_suffix("") for path in pages(site)}
    assert {path.with_name("index") if path.name == "README" else path for path in docs} <= built


def test_the_sections_are_those_that_readers_know(site: Path) -> None:
    tabs = re.findall(r'class="md-tabs__link">\s*(.*?)\s*</a>', (site / "index.html").read_text(encoding="utf-8"), re.S)
    assert tabs == SECTIONS


def test_the_first_page_is_the_readme_with_its_links_moved(site: Path) -> None:
    first = (site / "index.html").read_text(encoding="utf-8")
    assert 'href="deployments.html"' in first
    assert 'href="docs/' not in first


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r'<(?:script|img|link rel="stylesheet")[^>]+(?:src|href)="?(?:https?:)?//[^>]*')
    assert {str(path): found for path, text in pages(site).items() if (found := loaded.findall(text))} == {}


def test_the_keys_of_every_part_of_a_deployment_have_a_meaning() -> None:
    rows = [line for line in page("deployment_keys.md").splitlines() if line.startswith("| `")]
    assert [row for row in rows if row.endswith("|  |")] == []
    named = {row.split("`")[1] for row in rows}
    assert set(DeploymentSpec.model_fields) <= named
    parts = DeploymentSpec.model_json_schema()["$defs"].values()
    assert {key for part in parts for key in part.get("properties", {})} <= named


def test_every_command_and_every_verb_has_a_section_with_its_options() -> None:
    text = page("commands.md")
    for name, command in COMMANDS.items():
        assert f"\n## trireme {name}\n" in text
        for verb in command.verbs:
            assert f"\n### trireme {name} {verb_of(verb)}\n" in text
        for group, below in command.groups.items():
            assert all(f"\n### trireme {name} {group} {verb_of(verb)}\n" in text for verb in below.verbs)
    assert "| `--exit-timeout-s <float range>` |" in text
    assert "```\ntrireme serve\ntrireme serve --deployment" in text


def test_every_code_that_a_token_may_have_is_listed_with_the_reasons_that_the_code_gives() -> None:
    text = page("errors.md")
    for code in ("INVALID_SPEC", "BUILD", "INVALID_ARG", "ACCESS_DENIED", "INTERNAL", "UNAVAILABLE", "DEADLINE"):
        assert parse_token(f"[{code}]") is not None
        assert f"| `{code}` |" in text
    assert "| `UNAVAILABLE` | `queue_full` | server |" in text
    assert "| `UNAVAILABLE` | `connection_lost` | client |" in text


def test_metrics_are_listed_with_their_labels() -> None:
    families = metrics_page.families()
    assert families["trireme_requests_total"].kind == "counter"
    assert "cancelled" in families["trireme_requests_total"].labels["finish_reason"]
    assert list(families["trireme_refused_requests_total"].labels) == ["class", "reason"]
    assert all(family.description for family in families.values())


def test_a_cell_is_one_line_and_links_the_pages_that_it_names() -> None:
    assert cell("a | b\n  of docs/frontend.md#tls") == r"a \| b of [frontend.md](../frontend.md#tls)"
