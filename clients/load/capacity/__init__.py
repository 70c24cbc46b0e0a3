# SPDX-License-Identifier: Apache-2.0
"""The highest load that a server takes within its targets."""
