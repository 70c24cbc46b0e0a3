# SPDX-License-Identifier: Apache-2.0
"""The parts that every process of the server needs: its log, its folder of sockets, its end."""
