"""A vLLM-like model server whose timing follows from its load."""
