# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests."""

import signal

# A job in the background of a shell ignores Ctrl-C, and so would every process that these tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
