# SPDX-License-Identifier: Apache-2.0
"""The stub's side of a request's life: prompt, engine step, text, replies."""
