"""The model card of a fit in Markdown: what the model is for, how good it is, and where not to trust it."""

import re

from markupsafe import Markup

from meanteacher.formats import listed
from meanteacher.photos.pages import fit_page
from meanteacher.records import Fit
from meanteacher.report.page import render

N_CLASSES = 50
"""As many as a reader looks through; the page lists all."""


def model_card(fit: Fit) -> str:
    """The card as text, a pure function of fit.json. Names are escaped: none can become a heading, link or tag."""
    commands = fit_page.commands(fit)
    return render(
        "card.md.jinja",
        escaped,
        **fit_page.shown(fit),
        listed=listed,
        most_classes=N_CLASSES,
        placeholders=fit_page.placeholders(where="card", labels=bool(fit.data.labels_file)),
        commands=commands,
        width=max(len(command) for _, command in commands),
        python=fit_page.python_code(),
    )


def escaped(text: object) -> str:
    r"""Text that Markdown shows as it is, on one line.

    >>> print(escaped("<b>[x](y)</b> | *z*"))
    &lt;b&gt;\[x\](y)&lt;/b&gt; \| \*z\*
    """
    if isinstance(text, Markup):
        return text
    line = " ".join(str(text).split())
    line = re.sub(r"[\\`*_{}\[\]#|~!$]", r"\\\g<0>", line)
    # Bare addresses become links in some readers.
    line = re.sub(r":(?=//)|(?<=www)\.", r"\\\g<0>", line, flags=re.IGNORECASE)
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
