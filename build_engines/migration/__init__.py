# SPDX-License-Identifier: Apache-2.0
"""`trireme import`: a filled `inflight_batcher_llm` or `llmapi` repository as a deployment, every setting reported."""
