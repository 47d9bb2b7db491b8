"""The commands of `headroom-batch`, one module each: `add_arguments(parser)` and `run(arguments) -> int`."""
