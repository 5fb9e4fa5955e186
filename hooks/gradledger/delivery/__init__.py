"""From open records to the service, on a background thread."""
