# SPDX-License-Identifier: Apache-2.0
"""Base utilities of every room: errors, whole files, sockets, paths, percentiles, bootstrap intervals."""
