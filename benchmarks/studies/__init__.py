# SPDX-License-Identifier: Apache-2.0
"""Studies that were run to decide something, and are run again by hand."""
