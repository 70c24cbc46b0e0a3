# SPDX-License-Identifier: Apache-2.0
"""PromQL for several rules and panels.

Sums keep every label but those of one replica, so that clusters, namespaces and deployments stay apart without being
named. A ratio without a denominator is left out: 0 / 0 is NaN, which no comparison finds.
"""

REPLICA = "instance, pod, node"  # as Kubernetes' service discovery calls them
CANARY = 'model=~".*ensemble_canary"'
STABLE = 'model=~".*ensemble"'
# Autoscalers of servers: a gateway's in the same namespace has replicas above its minimum for reasons of its own.
AUTOSCALER = 'horizontalpodautoscaler=~".*trireme.*",horizontalpodautoscaler!~"openai-.*"'


def rate(metric: str, window: str, *, without: str = "") -> str:
    """Return a counter's rate a second, summed over replicas.

    Args:
        metric: the counter's name; it may have a selector.
        window: the window of the rate, such as `5m`.
        without: more labels to sum over, separated by commas.
    """
    return f"sum without ({REPLICA}{', ' + without if without else ''}) (rate({metric}[{window}]))"


def ratio(part: str, whole: str) -> str:
    """Return a share; it has no value where the whole is 0."""
    return f"{part}\n/\n({whole} > 0)"


def quantile(q: float, histogram: str, window: str) -> str:
    """Return a quantile of a histogram's observations in a window; it has no value where nothing was observed."""
    buckets = rate(f"{histogram}_bucket", window)
    return f"histogram_quantile({q:g}, {buckets})\nand\n{rate(f'{histogram}_count', window)} > 0"


def bucket(bound_s: float) -> str:
    """Return the selector of a histogram's bound. Prometheus 3 writes a whole one as 1.0, versions before it as 1."""
    text = f"{bound_s:g}"
    return f'{{le=~"{text}([.]0)?"}}' if text.isdigit() else f'{{le="{text}"}}'


def as_stable(series: str) -> str:
    """Return a canary's series under the name of the model that it is a canary of, its version kept."""
    return f'label_replace({series}, "model", "$1", "model", "(.*ensemble)_canary")'
