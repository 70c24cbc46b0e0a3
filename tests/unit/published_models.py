# SPDX-License-Identifier: Apache-2.0
"""`config.json` of known models and their numbers of parameters."""

from build_engines.known_models import known_models

PUBLISHED = known_models()
