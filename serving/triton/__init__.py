# SPDX-License-Identifier: Apache-2.0
"""Triton as a child process: its start, its frontends, loads that never end."""
