# SPDX-License-Identifier: Apache-2.0
"""What stands in the way of serving a release on this machine, found before it is loaded."""
