"""Flow control: the saturation detector, and the decisions that wait."""
