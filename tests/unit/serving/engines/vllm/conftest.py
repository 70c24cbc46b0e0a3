# SPDX-License-Identifier: Apache-2.0
"""The tests of the real engine, which are collected by the interpreter of vLLM's environment alone."""

import importlib.util

collect_ignore = [] if importlib.util.find_spec("vllm") else ["inner"]
