"""Records of runs -> tables, figures and one offline HTML page. Reads JSON; never imports torch.

records = load_records("runs")
print(to_text(summarise(records)))
write_page(records, "report.html", "Digits with 40 labels")
"""

from meanteacher.report.fields import RecordError
from meanteacher.report.figures import dot_plot, learning_curves
from meanteacher.report.names import display_name
from meanteacher.report.page import render_page, write_page
from meanteacher.report.pairs import Difference, Pair, paired_difference
from meanteacher.report.records import Record, load_record, load_records
from meanteacher.report.sentences import answer
from meanteacher.report.tables import Row, Spread, summarise, to_markdown, to_text

__all__ = [
    "Difference",
    "Pair",
    "Record",
    "RecordError",
    "Row",
    "Spread",
    "answer",
    "display_name",
    "dot_plot",
    "learning_curves",
    "load_record",
    "load_records",
    "paired_difference",
    "render_page",
    "summarise",
    "to_markdown",
    "to_text",
    "write_page",
]
