# SPDX-License-Identifier: Apache-2.0
"""The refusal to serve a release that failed its evaluation, unless somebody has overridden that by name."""

from ensemble_configs.releases.release_manifest import ReleaseManifest
from ensemble_configs.spec.finding import Finding


def check_evaluation(manifest: ReleaseManifest) -> list[Finding]:
    """Return what the quality gate has against a release; nothing if the release was never evaluated."""
    failed = [result for result in manifest.evaluation if result.passed is False]
    if not failed or manifest.override is not None:
        return []
    first = failed[0]
    more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
    return [
        Finding(
            check="evaluation",
            found=f"{first.metric} of {first.value:.4g} in {first.task}, {first.group}{more}",
            wanted="what the recipe's quality asks for, in every group",
            next_step="build it in another way, or `trireme evaluate ... --override --reason TEXT --who NAME`",
        )
    ]
