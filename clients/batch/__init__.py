# SPDX-License-Identifier: Apache-2.0
"""The command `trireme batch`: files of OpenAI batch lines, answered by a running Triton; resumable, each line once."""
