"""Several processes that train one network: who they are, and how they share the rows of a batch."""

from meanteacher.distributed.rows import all_rows, normal_rows, own_rows, shared_generator

__all__ = ["all_rows", "normal_rows", "own_rows", "shared_generator"]
