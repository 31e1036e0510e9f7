"""Model families: how the objects of one library are taken apart and put together, one family a file."""
