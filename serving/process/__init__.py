# SPDX-License-Identifier: Apache-2.0
"""What every process of the server needs: its log, its folder of sockets, its end."""
