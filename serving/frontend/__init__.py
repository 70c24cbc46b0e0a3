# SPDX-License-Identifier: Apache-2.0
"""The processes that clients reach in place of Triton's own ports.

What a client sends is checked here before Triton reads it: neither a crash of Triton nor a start of it is in a client's
hands. `docs/frontend.md` says what is checked and why.
"""
