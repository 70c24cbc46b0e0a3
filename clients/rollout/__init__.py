# SPDX-License-Identifier: Apache-2.0
"""Versions under traffic: split, judged, promoted or rolled back."""
