# SPDX-License-Identifier: Apache-2.0
"""`trireme serve`: the parent process of Triton, which checks before it starts and drains before it stops."""
