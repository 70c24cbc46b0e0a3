# SPDX-License-Identifier: Apache-2.0
"""Answers that are given again where the same is asked again."""
