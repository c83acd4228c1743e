"""Statistics of differences between runs of equal seeds: Student's t, two-sided, 95 %."""

import statistics

# The 97.5 % quantiles of Student's t, by degrees of freedom from 1 on.
QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131),
)


def interval(values):
    """Returns (mean, half of the interval's width). The width is None for a single value."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return mean, None
    return mean, QUANTILES[len(values) - 2] * statistics.stdev(values) / len(values) ** 0.5


def against(own, base):
    """Returns [own / base - 1 for each seed that both have]. own and base are {seed: loss}."""
    return [own[seed] / base[seed] - 1 for seed in sorted(own) if seed in base]


def cell(own, base):
    """Returns the mean relative difference and its interval as text. The text is empty if there is no
    common seed."""
    differences = against(own, base)
    if not differences:
        return ""
    mean, half = interval(differences)
    text = f"{100 * mean:+.2f} %"
    return (
        text if half is None else f"{text} [{100 * (mean - half):+.2f}, {100 * (mean + half):+.2f}]"
    )
