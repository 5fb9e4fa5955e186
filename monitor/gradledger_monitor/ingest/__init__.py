"""From a request body to records: decompressed, bounded, split into lines, validated."""
