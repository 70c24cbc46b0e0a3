# SPDX-License-Identifier: Apache-2.0
"""A load run as files: the record of each request, the samples of the server and of the client, and their folder."""
