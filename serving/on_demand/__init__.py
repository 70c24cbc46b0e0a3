# SPDX-License-Identifier: Apache-2.0
"""Engines that do not fit together are loaded in turns: when somebody asks for one, and none that is idle stays in the
way.
"""
