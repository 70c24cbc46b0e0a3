# SPDX-License-Identifier: Apache-2.0
"""Runs as a page that can be read offline and without colour, as Markdown, and as JSON."""
