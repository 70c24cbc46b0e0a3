# SPDX-License-Identifier: Apache-2.0
"""A build as stages, each run once and found again."""
