# SPDX-License-Identifier: Apache-2.0
"""From the records of a load to figures with intervals, and to a page."""
