# SPDX-License-Identifier: Apache-2.0
"""Estimators of a candidate's speed: our roofline, and AISimulate where it is installed."""
