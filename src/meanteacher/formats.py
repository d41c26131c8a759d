"""Numbers and names as text for readers, in a terminal and on a page alike: `19.2 %`, `2,094 images`."""

import re
from collections.abc import Sequence

_MANY = 10_000
"""Number of images from which on the second decimal of a percentage is more than chance."""
_DAYS = 3
"""Number of days from which on a time is given in days."""


def percent(share: float, n_images: int = 0) -> str:
    """A share in percent.

    >>> percent(0.19194), percent(0.0314, n_images=26_032)
    ('19.2 %', '3.14 %')
    """
    return f"{percentage(share, n_images)} %"


def percentage(share: float, n_images: int = 0) -> str:
    """A share in percent without the sign, for tables with a sign in their heading; many images give two decimals.

    >>> percentage(0.0314, n_images=597), percentage(0.0314, n_images=10_000), percentage(-0.0001, n_images=597)
    ('3.1', '3.14', '0.0')
    """
    return f"{100 * share:z.{2 if n_images >= _MANY else 1}f}"


def percent_range(low: float, high: float, n_images: int = 0) -> str:
    """An interval of shares in percent.

    >>> percent_range(0.193, 0.364)
    '19.3 to 36.4 %'
    """
    return f"{percentage(low, n_images)} to {percent(high, n_images)}"


def whole_percent(*shares: float) -> str:
    """Shares in percent without decimals: one, or the ends of an interval.

    >>> whole_percent(0.8), whole_percent(0.636, 0.807)
    ('80 %', '64 to 81 %')
    """
    return f"{' to '.join(f'{100 * share:z.0f}' for share in shares)} %"


def certainty(probability: float) -> str:
    """A model's confidence in percent, at most "over 99.9 %", because no model is completely sure.

    >>> certainty(0.987), certainty(0.99999)
    ('98.7 %', 'over 99.9 %')
    """
    return percent(probability) if probability < 0.9995 else f"over {percent(0.999)}"


def points(difference: float) -> str:
    """A difference of two percentages, with a typographic minus sign.

    >>> points(13.96), points(-0.84), points(-0.01)
    ('14.0', '−0.8', '0.0')
    """
    return f"{difference:z.1f}".replace("-", "−")


def count(n: int, noun: str = "image", plural: str | None = None) -> str:
    """A number and its noun in singular or plural.

    >>> count(1), count(1200), count(2, "class", "classes")
    ('1 image', '1,200 images', '2 classes')
    """
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    """A time in seconds, minutes, hours or days.

    >>> duration(4.21), duration(75), duration(7190), duration(1_550_000)
    ('4.2 s', '1 min 15 s', '2 h 0 min', '18 days')
    """
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    if round(seconds) < 3600:
        return "{} min {} s".format(*divmod(round(seconds), 60))
    if seconds < _DAYS * 86_400:
        return "{} h {} min".format(*divmod(round(seconds / 60), 60))
    return f"{round(seconds / 86_400):,} days"


def unbroken(text: str) -> str:
    r"""The text with no-break spaces between a number and its unit.

    >>> unbroken("2.0 ± 0.1 % of 40 labels in 3 min")
    '2.0\xa0±\xa00.1\xa0% of 40\xa0labels in 3\xa0min'
    """
    return re.sub(r"(?<=\d) (?=%|±|(?:points?|labels?|h|min|s)\b)|(?<=±) ", "\N{NO-BREAK SPACE}", text)


def listed(names: Sequence[str], most: int | None = None) -> str:
    """Names as an enumeration; with `most`, only so many and the number of the others.

    >>> listed(["A", "B", "C"]), listed(["A", "B", "C", "D"], most=2)
    ('A, B and C', 'A, B and 2 more')
    """
    if most is not None and len(names) > most:
        names = [*names[:most], f"{len(names) - most:,} more"]
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def escape_name(name: str) -> str:
    r"""The name with backslash escapes for control characters and for bytes that are not UTF-8.

    Characters that reverse the direction of text are escaped as well: they would show gpj.exe as exe.jpg.

    >>> escape_name("caf\udce9\n.jpg")
    'caf\\xe9\\x0a.jpg'
    >>> escape_name("\u202egpj.exe")
    '\\u202egpj.exe'
    """
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", _escape, name)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    # os.fsdecode maps a byte that is not UTF-8 to this range.
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}"


BASELINE = "supervised"
"""The method that the others are compared with."""

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
"""method -> its name in tables, in their order."""


def display_name(method: str) -> str:
    """The name of a method at the start of a line.

    >>> display_name("mean-teacher"), display_name("a-new-method")
    ('Mean Teacher', 'A new method')
    """
    spaced = method.replace("-", " ")
    return METHODS.get(method, spaced[:1].upper() + spaced[1:])
