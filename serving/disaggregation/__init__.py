# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode apart: prompts that other servers compute for this one."""
