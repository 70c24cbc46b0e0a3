# SPDX-License-Identifier: Apache-2.0
"""The weights by which a router sends requests to two servers: read, set, and known to be in force."""
