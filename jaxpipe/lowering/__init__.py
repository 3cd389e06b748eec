"""A schedule becomes a tick table: ``lower``, and ``replay``, which proves the table."""
