# SPDX-License-Identifier: Apache-2.0
"""Other servers of language models beside ours: same model, same prompts, same load client, one after the other."""
