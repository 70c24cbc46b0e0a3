# SPDX-License-Identifier: Apache-2.0
"""Writers of the tables in docs, and the check of the links between documents (`make docs`)."""
