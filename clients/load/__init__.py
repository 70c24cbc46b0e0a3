# SPDX-License-Identifier: Apache-2.0
"""The commands of `trireme bench`: load on a running server, its records, and a report that says how sure it is."""
