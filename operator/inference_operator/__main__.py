"""`python -m inference_operator` is the headroom-operator command."""

from inference_operator.main import main

main()
