# SPDX-License-Identifier: Apache-2.0
"""The client of an OpenAI-compatible server, for loads."""
