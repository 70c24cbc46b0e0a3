# SPDX-License-Identifier: Apache-2.0
"""The metrics page of a server, as a benchmark reads it."""

import urllib.request

from prometheus_client.parser import text_string_to_metric_families


class MetricsPage:
    """The page at ``host:port``, read anew for each question."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}/metrics"

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of all samples of a name with these labels; 0 where there is none."""
        return self.values((name, labels))[0]

    def values(self, *asked: tuple[str, dict[str, str]]) -> list[float]:
        """Return the `value` of each question, from one reading of the page."""
        with urllib.request.urlopen(self._url, timeout=5) as response:
            page = response.read().decode()
        samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
        return [
            sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())
            for name, labels in asked
        ]
