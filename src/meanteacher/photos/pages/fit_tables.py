"""Tables and lists of a fit, as its page and its model card show them."""

from dataclasses import dataclass

from meanteacher.formats import duration
from meanteacher.records import SEVERITIES, ClassResult, Finding, Fit

MOST_CLASSES = 20
"""A larger matrix cannot be read: the pairs that are confused most often are listed instead."""
N_PAIRS = 20


@dataclass(frozen=True, slots=True)
class Confused:
    """Images of one class that were mistaken for another."""

    true: str
    mistaken_for: str
    n: int
    of: int


def matrix(fit: Fit) -> list[tuple[str, tuple[int, ...]]]:
    """Rows of the confusion matrix with the name of their true class; empty if there are too many classes."""
    return list(zip(fit.data.class_names, fit.confusion, strict=True)) if len(fit.confusion) <= MOST_CLASSES else []


def confused_pairs(fit: Fit) -> list[Confused]:
    """The confusions in order of how often they happened, the most frequent only."""
    names, confusion = fit.data.class_names, fit.confusion
    wrong = [(n, i, j) for i, row in enumerate(confusion) for j, n in enumerate(row) if n and i != j]
    worst = sorted(wrong, key=lambda pair: (-pair[0], pair[1:]))[:N_PAIRS]
    return [Confused(names[i], names[j], n, sum(confusion[i])) for n, i, j in worst]


def class_rows(fit: Fit) -> list[ClassResult]:
    """The classes in their own order, or the highest errors first if there are too many to look through."""
    rows = list(fit.per_class)
    if len(rows) > MOST_CLASSES:
        rows.sort(key=lambda row: -1.0 if row.error is None else row.error, reverse=True)
    return rows


def findings(fit: Fit) -> list[Finding]:
    """The most serious first."""
    return sorted(fit.findings, key=lambda finding: SEVERITIES.index(finding.severity))


def work(fit: Fit) -> list[tuple[str, str]]:
    """What was computed, in words."""
    return [
        ("Minutes allowed", f"{fit.minutes:g}"),
        ("Network", fit.network),
        ("Parameters", f"{fit.n_parameters:,}"),
        ("Pixels per side", f"{fit.data.size:,}"),
        ("Views of each photo", f"{fit.n_views:,}"),
        ("Mirrored views", "yes" if fit.flip else "no"),
    ]


def made_with(fit: Fit) -> list[tuple[str, str]]:
    """The versions and the machine."""
    tools = {"meanteacher": fit.version, **fit.environment}
    return [(tool, "not recorded" if value is None else str(value)) for tool, value in tools.items()]


def spans(fit: Fit) -> list[tuple[str, str, str]]:
    """The pieces of work in the order in which they ran: what, how long, and its share in percent."""
    total = sum(fit.pieces.values()) or 1.0
    return [(piece, duration(time), f"{100 * time / total:.2f}") for piece, time in fit.pieces.items()]
