"""What is known of the endpoints: discovery, scraping, ledger, prefix index, in columns."""
