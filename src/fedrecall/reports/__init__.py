"""What runs are turned into: tables, figures, a page. Reports read records, not live objects."""
