# SPDX-License-Identifier: Apache-2.0
"""What is served, as typed data, and the compiler from it to every file that Triton reads."""
