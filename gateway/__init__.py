# SPDX-License-Identifier: Apache-2.0
"""The front door: OpenAI's API over HTTP, in front of the text models of a deployment on Triton."""
