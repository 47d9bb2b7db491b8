"""The operator: watch, observe, desire, apply, report."""
