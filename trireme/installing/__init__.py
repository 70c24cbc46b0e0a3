# SPDX-License-Identifier: Apache-2.0
"""Installers of programs that no index has as a package of Python, with nothing but Python's own library."""
