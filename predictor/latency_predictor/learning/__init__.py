"""What the trainer decides: samples, models, calibration, drift, promotion. Pure: the clock is an
argument."""
