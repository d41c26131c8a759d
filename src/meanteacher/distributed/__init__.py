"""Several processes that train one network. `ranks` connects them, `rows` divides a batch among them."""

from meanteacher.distributed.ranks import ALONE, Ranks, check_devices, found_in, join
from meanteacher.distributed.rows import all_rows, is_synchronised, normal_rows, over_ranks, step_of

__all__ = [
    "ALONE",
    "Ranks",
    "all_rows",
    "check_devices",
    "found_in",
    "is_synchronised",
    "join",
    "normal_rows",
    "over_ranks",
    "step_of",
]
