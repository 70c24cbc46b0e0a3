# SPDX-License-Identifier: Apache-2.0
"""OpenAI's API over the serving contract, without HTTP: bodies to requests, chunks to answers and events, errors."""
