# SPDX-License-Identifier: Apache-2.0
"""The statistics of two arms: tests that hold however often one looks, keys, incidents, groups, equal work."""
