# SPDX-License-Identifier: Apache-2.0
"""Monitoring of a running deployment: recording and alert rules, dashboards, and a Prometheus to try them."""
