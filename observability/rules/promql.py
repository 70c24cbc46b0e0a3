# SPDX-License-Identifier: Apache-2.0
"""PromQL that several rules and panels are made of.

Sums keep every label but those of one replica, so that clusters, namespaces and deployments stay apart without being
named. A ratio without a denominator is left out: 0 / 0 is NaN, which no comparison finds.
"""

REPLICA = "instance, pod, node"  # as Kubernetes' service discovery calls them
CANARY = 'model=~".*ensemble_canary"'
STABLE = 'model=~".*ensemble"'
# Autoscalers of ours: a gateway's in the same namespace has replicas above its minimum for reasons of its own.
AUTOSCALER = 'horizontalpodautoscaler=~".*trireme.*"'


def rate(metric: str, window: str, *, without: str = "") -> str:
    """A second, of all replicas. Args: `metric` may have a selector; `without` names more labels that are summed."""
    return f"sum without ({REPLICA}{', ' + without if without else ''}) (rate({metric}[{window}]))"


def ratio(part: str, whole: str) -> str:
    """A share, where there is something to have a share of."""
    return f"{part}\n/\n({whole} > 0)"


def quantile(q: float, histogram: str, window: str) -> str:
    """Of a histogram's observations in a window; none where nothing was observed."""
    buckets = rate(f"{histogram}_bucket", window)
    return f"histogram_quantile({q:g}, {buckets})\nand\n{rate(f'{histogram}_count', window)} > 0"


def bucket(bound_s: float) -> str:
    """The selector of a histogram's bound. Prometheus 3 writes a whole one as 1.0, those before as it was told: 1."""
    text = f"{bound_s:g}"
    return f'{{le=~"{text}([.]0)?"}}' if text.isdigit() else f'{{le="{text}"}}'


def as_stable(series: str) -> str:
    """A canary's series under the name of the model that it is a canary of, its version kept."""
    return f'label_replace({series}, "model", "$1", "model", "(.*ensemble)_canary")'
