# SPDX-License-Identifier: Apache-2.0
"""Grafana dashboards, one a YAML file; `grafana-foundation-sdk`, a dev dependency, writes them."""
