"""A TIFF written by hand."""

import struct


def tiled_tiff(side: int, *, big: bool = False) -> bytes:
    """A 16x16 image in one tile of `side` x `side` pixels, of which 256 are there."""
    fields = {256: 16, 257: 16, 258: 8, 259: 1, 262: 1, 277: 1, 322: side, 323: side, 324: 0, 325: 256}
    n_count, n_entry, place, start = (8, 20, "Q", 16) if big else (2, 12, "I", 8)
    fields[324] = start + n_count + n_entry * len(fields) + (8 if big else 4)
    head = b"II+\0" + struct.pack("<HHQ", 8, 0, 16) if big else b"II*\0" + struct.pack("<I", 8)
    entry = "<HHQI4x" if big else "<HHII"
    entries = b"".join(struct.pack(entry, tag, 4, 1, value) for tag, value in fields.items())
    count = struct.pack("<Q" if big else "<H", len(fields))
    return head + count + entries + struct.pack(f"<{place}", 0) + bytes(range(256))
