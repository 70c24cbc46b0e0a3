# SPDX-License-Identifier: Apache-2.0
"""Is the candidate worse than the baseline beside it? Tests that hold however often one looks."""
