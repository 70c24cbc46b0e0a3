# SPDX-License-Identifier: Apache-2.0
"""The order in which requests run: a budget of KV blocks and tokens, a bounded queue, and refusals with a retry time.

Admission runs in the engine's process, before everything else there, because only there all callers meet.
"""
