"""Entry point of `python -m model_server_sim`; holds nothing else."""

from model_server_sim.main import main

raise SystemExit(main())
