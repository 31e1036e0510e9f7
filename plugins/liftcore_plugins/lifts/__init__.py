"""What may stand in a prefix besides the transforms' own spellings, one lift type a file."""
