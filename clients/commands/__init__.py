# SPDX-License-Identifier: Apache-2.0
"""The commands that ask a server, or tell it something."""
