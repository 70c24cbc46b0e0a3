# SPDX-License-Identifier: Apache-2.0
"""`trireme batch`: files of OpenAI batch lines, answered by a running Triton; resumable, each line exactly once."""
