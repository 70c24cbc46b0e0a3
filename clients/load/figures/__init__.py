# SPDX-License-Identifier: Apache-2.0
"""From the records of a run to its figures, with how sure one may be of each."""
