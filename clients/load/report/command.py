# SPDX-License-Identifier: Apache-2.0
"""`trireme bench report`."""


def report() -> None:
    """Later."""
