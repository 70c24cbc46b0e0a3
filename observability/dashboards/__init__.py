# SPDX-License-Identifier: Apache-2.0
"""Grafana dashboards as typed data; `grafana-foundation-sdk`, a dev dependency, writes them."""
