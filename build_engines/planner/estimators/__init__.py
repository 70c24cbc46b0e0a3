# SPDX-License-Identifier: Apache-2.0
"""Who says how fast a candidate is: our roofline, and AISimulate where it is installed."""
