# SPDX-License-Identifier: Apache-2.0
"""Releases that come, are promoted and go while the server runs."""
