"""What a response says, read from its pieces as they pass, and the model's name put back into it."""
