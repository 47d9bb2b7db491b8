"""Whether a request may enter now: saturation and shedding."""
