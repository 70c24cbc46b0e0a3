# SPDX-License-Identifier: Apache-2.0
"""The steps from each version of the tables to the next; a step that was released is never changed."""
