# SPDX-License-Identifier: Apache-2.0
"""Who runs next: a budget of KV blocks and tokens, a bounded queue, and refusals that say when to come back.

In the engine's process, before everything else there, because only there all callers meet.
"""
