"""Images in tar shards: read in any order from an index of their places, and written from a folder of photos."""

from meanteacher.data.shards.source import ShardFiles, Shards

__all__ = ["ShardFiles", "Shards"]
