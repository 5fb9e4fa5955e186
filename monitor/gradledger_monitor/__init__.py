"""The service: takes records in, judges runs, shows and answers."""
