"""What happened in a step: from backwards and optimizer calls to open records."""
