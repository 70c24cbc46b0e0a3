# SPDX-License-Identifier: Apache-2.0
"""A process between an adapter and its engine: it keeps the log's last lines, sees ranks die, and leaves nothing."""
