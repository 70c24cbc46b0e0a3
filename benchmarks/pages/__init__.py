# SPDX-License-Identifier: Apache-2.0
"""Writers of the tables in docs that come from committed results (`make docs`)."""
