# SPDX-License-Identifier: Apache-2.0
"""The gateway's page: a chat, a comparison and the figures of this moment, as files that a browser runs as they are."""
