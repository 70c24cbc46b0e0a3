# SPDX-License-Identifier: Apache-2.0
"""Errors, files that are there whole, sockets, paths, percentiles and bootstrap intervals, for every room."""
