"""A folder of photos: find them, decode them, and check them."""
