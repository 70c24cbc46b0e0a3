# SPDX-License-Identifier: Apache-2.0
"""The dashboards of the YAML files here, and their JSON as Grafana imports it.

Queries are PromQL by legend, with `$model`, `$__rate_interval` and the dashboard's own text boxes in it, which Grafana
fills in, and `<...>`, which `dashboards` does.
"""

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from grafana_foundation_sdk.builders.dashboard import Dashboard as DashboardBuilder
from grafana_foundation_sdk.builders.dashboard import DatasourceVariable, QueryVariable, Row, TextBoxVariable
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as StatPanel
from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeriesPanel
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh

from observability.rules.objectives import Objectives
from observability.rules.promql import CANARY, STABLE
from trireme.base.known_types import known

_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
NAMES = ("serving", "capacity", "rollout", "gpu")
_ROUTES = 'model=~".*ensemble(_canary)?|.*tensorrt_llm_bls"'


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A graph, or a number for each series."""

    title: str
    unit: str  # Grafana's name of it
    queries: dict[str, str]  # PromQL by legend, which names its series by their labels
    description: str = ""
    is_number: bool = False
    most: int | None = None  # end of the scale


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """Rows of panels, and text boxes with their defaults."""

    uid: str
    title: str
    description: str
    rows: dict[str, tuple[Panel, ...]]
    text_boxes: dict[str, tuple[str, str]] = field(default_factory=dict)  # name: label, default

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Return the panels of every row."""
        return tuple(panel for panels in self.rows.values() for panel in panels)


def dashboards(objectives: Objectives) -> dict[str, Dashboard]:
    """Return every dashboard by its file's name; panels name the targets of `objectives`."""
    meant = {
        "<errors %>": f"{objectives.error_share:.2%}",
        "<errors>": f"{objectives.error_share:g}",
        "<late>": f"{1 - objectives.ttft_share:.6g}",
        "<ttft>": f"{objectives.ttft_p99_s:g}",
        "<tpot>": f"{objectives.tpot_p99_s:g}",
        "<routes>": _ROUTES,
        "<canary>": CANARY,
        "<stable>": STABLE,
    }
    found = {}
    for name in NAMES:
        text = Path(__file__).with_name(f"{name}.yaml").read_text(encoding="utf-8")
        for mark, value in meant.items():
            text = text.replace(mark, value)
        found[name] = msgspec.yaml.decode(text, type=known(Dashboard))
    return found


def filled_in(expr: str, dashboard: Dashboard, *, window: str) -> str:
    """Return a query as Grafana sends it: for all models, with text boxes at their defaults.

    Args:
        expr: PromQL with Grafana's variables.
        dashboard: the dashboard that the query is of.
        window: the window of rates, such as `1m`.
    """
    for name, (_, default) in dashboard.text_boxes.items():
        expr = expr.replace(f"${name}", default)
    return expr.replace("$model", ".*").replace("$__rate_interval", window)


def dashboard_json(dashboard: Dashboard) -> str:
    """Return the text of the dashboard's file; equal dashboards give equal texts."""
    builder = (
        DashboardBuilder(dashboard.title)
        .uid(dashboard.uid)
        .description(dashboard.description)
        .tags(["trireme"])
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .readonly()
        .with_variable(DatasourceVariable("datasource").type("prometheus"))
        .with_variable(
            QueryVariable("model")
            .datasource(_SOURCE)
            .query('label_values({__name__=~"trireme_requests_total|trireme_engine_up"}, model)')
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
            .all_value(".*")
        )
    )
    for name, (label, default) in dashboard.text_boxes.items():
        builder = builder.with_variable(TextBoxVariable(name).label(label).default_value(default))
    for title, panels in dashboard.rows.items():
        builder = builder.with_row(Row(title))
        for each in panels:
            builder = builder.with_panel(_built(each))
    return JSONEncoder(sort_keys=True, indent=2).encode(builder.build()) + "\n"


def _built(panel: Panel) -> StatPanel | TimeSeriesPanel:
    built: StatPanel | TimeSeriesPanel = StatPanel() if panel.is_number else TimeSeriesPanel()
    built = built.title(panel.title).description(panel.description).unit(panel.unit).datasource(_SOURCE)
    built = built.height(8).span(8).min(0)
    if panel.most is not None:
        built = built.max(panel.most)
    for index, (legend, expr) in enumerate(panel.queries.items()):
        target = Dataquery().expr(expr).legend_format(legend).ref_id(chr(ord("A") + index))
        built = built.with_target(target.instant() if panel.is_number else target.range())
    return built
