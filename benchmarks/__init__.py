# SPDX-License-Identifier: Apache-2.0
"""Measurements, as ratios of two things in one run; results are committed under `results/`."""
