# SPDX-License-Identifier: Apache-2.0
"""Anthropic's `/v1/messages` over the serving contract, without HTTP: bodies to chats, answers to blocks and events."""
