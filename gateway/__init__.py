# SPDX-License-Identifier: Apache-2.0
"""The front door: OpenAI's API and Anthropic's messages over HTTP, before the text models of a deployment on Triton."""
