"""A folder of photos: find them, decode them, and say what is wrong with them."""
