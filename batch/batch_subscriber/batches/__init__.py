"""Batches of requests from people: the files and batches of OpenAI's API."""
