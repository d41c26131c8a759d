"""What readers see instead of the names in the code, and the order in which methods are shown."""

from collections.abc import Iterable, Sequence

from meanteacher.report.records import Record

BASELINE = "supervised"
"""The method the others are measured against."""

METHODS = {
    BASELINE: "Supervised-only",
    "pseudo-label": "Pseudo-label",
    "pseudo-ensemble": "Pseudo-Ensemble Agreement",
    "gamma-model": "Gamma model",
    "pi-model": "Pi model",
    "temporal-ensembling": "Temporal Ensembling",
    "improved-gan": "Improved GAN",
    "vat": "VAT",
    "vat-entmin": "VAT + EntMin",
    "mean-teacher": "Mean Teacher",
    "mean-teacher-vat": "Mean Teacher + VAT",
    "fixmatch": "FixMatch",
    "freematch": "FreeMatch",
}


def display_name(method: str) -> str:
    """The name of a method at the start of a line.

    >>> display_name("mean-teacher")
    'Mean Teacher'
    >>> display_name("a-new-method")
    'A new method'
    """
    spaced = method.replace("-", " ")
    return METHODS.get(method, spaced[:1].upper() + spaced[1:])


def name_in_sentence(name: str) -> str:
    """The same name within a sentence: the baseline's is a plain word, the others are proper names.

    >>> name_in_sentence("Supervised-only"), name_in_sentence("Mean Teacher")
    ('supervised-only', 'Mean Teacher')
    """
    baseline = METHODS[BASELINE]
    return baseline.lower() + name.removeprefix(baseline) if name.startswith(baseline) else name


def place(method: str) -> tuple[int, str]:
    """The baseline first, then the paper's order, then any other by name."""
    known = list(METHODS)
    return (known.index(method) if method in known else len(known), method)


def recipe_labels(records: Iterable[Record]) -> dict[str, str]:
    """recipe -> its method's name, with the recipe's own beside it where several share the method."""
    methods = {record.recipe: record.method for record in records}
    shared = _repeated(list(methods.values()))
    return {
        recipe: f"{display_name(method)} ({recipe})" if method in shared else display_name(method)
        for recipe, method in methods.items()
    }


def _repeated(names: Sequence[str]) -> set[str]:
    return {name for name in names if names.count(name) > 1}
