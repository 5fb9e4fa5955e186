"""From a request body to records: decompress, bound, split into lines, validate."""
