"""Several processes that train one network: who they are, and how they share the rows of a batch."""
