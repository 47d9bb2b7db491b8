"""What a response says, read from its pieces as they pass: usage, tokens, failure; and the model's name restored."""
