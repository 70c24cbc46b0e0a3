# SPDX-License-Identifier: Apache-2.0
"""Installs programs that no index has as a package of Python, with nothing but Python's own library."""
