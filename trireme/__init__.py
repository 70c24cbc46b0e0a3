# SPDX-License-Identifier: Apache-2.0
"""The command `trireme`: a table of subcommands, each defined in the room that does the job."""
