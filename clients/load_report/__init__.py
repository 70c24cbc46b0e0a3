# SPDX-License-Identifier: Apache-2.0
"""The figures of a load, with intervals, computed from its records, and pages of them."""
