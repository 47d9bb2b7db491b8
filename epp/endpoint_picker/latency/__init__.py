"""Predicted latency: objectives, predictions, batches of rows, samples and the proof of the gain. Pure."""
