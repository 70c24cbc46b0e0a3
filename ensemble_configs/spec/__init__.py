# SPDX-License-Identifier: Apache-2.0
"""Deployment files as typed data, and the clashes between two parts of a file."""
