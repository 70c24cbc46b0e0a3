# SPDX-License-Identifier: Apache-2.0
"""The histograms of a metrics page that are made of counters (`serving.telemetry.counted_histogram`), as histograms."""

import re

_FAMILY = re.compile(r"^# HELP (\S+) (.*)\n# TYPE \S+ (\w+)\n((?:(?!# HELP ).*\n?)*)", re.MULTILINE)
_PARTS = ("_bucket", "_sum", "_count")


def with_histograms(page: str) -> str:
    """Return a page of Prometheus's text format in which counters named as the parts of a histogram are one."""
    families = {name: (text, kind, series) for name, text, kind, series in _FAMILY.findall(page)}
    found = {
        name.removesuffix("_bucket")
        for name, (_, kind, series) in families.items()
        if name.endswith("_bucket") and kind == "counter" and 'le="' in series
    }
    merged = {name for name in found if all(f"{name}{part}" in families for part in _PARTS)}
    if not merged:
        return page

    def shown(match: re.Match[str]) -> str:
        name, text, _, _ = match.groups()
        base, _, part = name.rpartition("_")
        if base not in merged or f"_{part}" not in _PARTS:
            return match.group(0)
        if part != "bucket":
            return ""
        series = "".join(_ended(families[f"{base}{each}"][2]) for each in _PARTS)
        return f"# HELP {base} {text}\n# TYPE {base} histogram\n{series}"

    return _FAMILY.sub(shown, page)


def _ended(series: str) -> str:
    return series if series.endswith("\n") or not series else f"{series}\n"
