"""Profile handlers: one plugin a file."""
