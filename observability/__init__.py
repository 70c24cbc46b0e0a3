# SPDX-License-Identifier: Apache-2.0
"""What is watched of a running deployment: recording and alert rules, dashboards, and a Prometheus to try them."""
