"""Facts about endpoints, in columns: discovery, scraping, in-flight ledger, prefix index."""
