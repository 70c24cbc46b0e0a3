# SPDX-License-Identifier: Apache-2.0
"""What every room uses: errors, files that are there whole, sockets, paths."""
