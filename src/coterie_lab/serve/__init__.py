"""A trained model behind a small, bounded web service: the report's page, live."""
