# SPDX-License-Identifier: Apache-2.0
"""The quality gate: a release measured against the release that it was made from."""
